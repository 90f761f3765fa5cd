"""Serve a classifier that says when it does not know: one ONNX file, numpy and onnxruntime.

    python examples/serve_onnx.py export digits.onnx          # needs bitbayes with its extra "onnx"
    python examples/serve_onnx.py serve digits.onnx           # needs numpy and onnxruntime alone
    curl --data '{"inputs": [[[[0.0, …]]]]}' localhost:8000   # images (n, 1, 28, 28) as lists of numbers

The graph has two outputs. The softmax of "logits" is the honest probability. "score" is larger for inputs
that are more like the data. The file says in its metadata from which score on to accept an answer, what the
classes are called, and which versions made it, so that nothing else travels with it.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

ACCEPTED_SHARE = 0.95
VALIDATION = 1000


def export(path: str, points: int = 5000) -> None:
    """Fit the embedded LeNet on the embedded digits, and export it with its threshold and its classes."""
    import bitbayes as bb

    data = bb.toys.digits()
    train = data.train_images[:points].split(500), data.train_labels[:points].split(500)
    # The network was trained on the training images: what it has not seen says how sure it may be.
    val = data.test_images[:VALIDATION].split(500), data.test_labels[:VALIDATION].split(500)
    bayes = bb.Laplace(bb.toys.digits_lenet())
    bayes.fit([*zip(*train, strict=True)]).tune([*zip(*val, strict=True)])
    bayes.export(
        path,
        data.train_images[:2],
        score=True,
        metadata={
            "threshold": bayes.threshold([*val[0]], accept=ACCEPTED_SHARE),
            "accepted_share": ACCEPTED_SHARE,
            "classes": [str(digit) for digit in range(10)],
        },
    )


class Classifier:
    """What is in an exported file: labels, confidences, and whether to accept them.

    Args:
        path: a file that `Laplace.export` wrote with `score=True`, and with "threshold" and "classes" in its
            metadata.
    """

    def __init__(self, path: str) -> None:
        import onnxruntime

        self.session = onnxruntime.InferenceSession(path)
        self.metadata = self.session.get_modelmeta().custom_metadata_map
        missing = {"threshold", "classes"} - self.metadata.keys()
        if missing:
            raise ValueError(
                f"{path} has no {' and no '.join(sorted(missing))} in its metadata: export it again"
            )
        self.threshold = float(self.metadata["threshold"])
        self.classes = json.loads(self.metadata["classes"])

    def __call__(self, inputs: Any) -> list[dict[str, Any]]:
        """One answer for each row of the inputs."""
        (given,) = self.session.get_inputs()
        x = np.asarray(inputs, dtype=np.float32)
        if x.ndim != len(given.shape) or any(
            isinstance(size, int) and size != own for size, own in zip(given.shape, x.shape, strict=True)
        ):
            raise ValueError(f"the inputs have shape {x.shape}: expected {tuple(given.shape)}")
        if not np.isfinite(x).all():  # a graph checks nothing
            raise ValueError("the inputs hold NaN or infinity")
        logits, scores = self.session.run(["logits", "score"], {given.name: x})
        powers = np.exp(logits - logits.max(1, keepdims=True))
        probabilities = powers / powers.sum(1, keepdims=True)
        return [
            {
                "label": self.classes[int(row.argmax())],
                "confidence": float(row.max()),
                "score": float(score),
                "accepted": bool(score >= self.threshold),
            }
            for row, score in zip(probabilities, scores, strict=True)
        ]


def make_server(classifier: Classifier, port: int) -> ThreadingHTTPServer:
    """A server that answers {"inputs": […]} with {"answers": […]}; port 0 is any that is free."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, answer = 200, {"answers": classifier(json.loads(body)["inputs"])}
            except (ValueError, KeyError, TypeError) as error:
                status, answer = 400, {"error": str(error)}
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return ThreadingHTTPServer(("localhost", port), Handler)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["export", "serve"])
    parser.add_argument("path")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    if options.command == "export":
        export(options.path)
        return
    classifier = Classifier(options.path)
    print(f"{options.path}, made by bitbayes {classifier.metadata['bitbayes_version']}: port {options.port}")
    make_server(classifier, options.port).serve_forever()


if __name__ == "__main__":
    main()
