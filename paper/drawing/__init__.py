"""What the pictures share: colours, panels, curves, dots and labels."""
