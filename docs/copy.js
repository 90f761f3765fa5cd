// A button beside each block of code that copies it. Outputs of examples have none.
if (navigator.clipboard) {
  for (const block of document.querySelectorAll(".highlight:not(.no-copy) pre")) {
    const button = Object.assign(document.createElement("button"), { className: "copy", textContent: "Copy" });
    button.onclick = async () => {
      await navigator.clipboard.writeText(block.querySelector("code").innerText.trimEnd() + "\n");
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    };
    block.parentElement.append(button);
  }
}
