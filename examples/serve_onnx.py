"""Serve a classifier that says when it does not know: one ONNX file, numpy and onnxruntime.

    python examples/serve_onnx.py export digits.onnx          # needs bitbayes with its extra "onnx"
    python examples/serve_onnx.py serve digits.onnx           # needs numpy and onnxruntime alone
    curl --data '{"inputs": [[[[0.0, …]]]]}' localhost:8000   # images (n, 1, 28, 28) as lists of numbers

The graph has four outputs. The softmax of "logits" is the honest probability. "score" is larger for inputs
that are more like the data, "accept" says whether it is large enough, and "sets" has all classes that an
input may have. What the classes are called is in the metadata, so that nothing else travels with the file.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

ACCEPTED_SHARE, COVERAGE = 0.95, 0.95
VALIDATION, CALIBRATION = 1000, 500
# What this server reads: the form of the metadata, and the outputs.
SCHEMA = "1"
OUTPUTS = ("logits", "score", "accept", "sets")


def export(path: str, points: int = 5000) -> None:
    """Fit the embedded LeNet on the embedded digits, and export it with its threshold, sets and classes."""
    import bitbayes as bb

    data = bb.toys.digits()
    train = data.train_images[:points].split(500), data.train_labels[:points].split(500)
    # The network was trained on the training images: what it has not seen says how sure it may be. What has
    # tuned nothing says how large the sets must be.
    parts = [VALIDATION, CALIBRATION, len(data.test_images) - VALIDATION - CALIBRATION]
    val, calibration, _ = zip(data.test_images.split(parts), data.test_labels.split(parts), strict=True)
    bayes = bb.Laplace(bb.toys.digits_lenet())
    bayes.fit([*zip(*train, strict=True)]).tune([val])
    bayes.export(
        path,
        data.train_images[:2],
        score=True,
        threshold=bayes.threshold(val[0], accept=ACCEPTED_SHARE),
        sets=bayes.sets([calibration], COVERAGE),
        classes=[str(digit) for digit in range(10)],
    )


class Classifier:
    """What is in an exported file: labels, confidences, whether to accept them, and sets of classes.

    Args:
        path: a file that `Laplace.export` wrote with `score=True`, `threshold=`, `sets=` and `classes=`, of a
            model with one class for each input.
    """

    def __init__(self, path: str) -> None:
        import onnxruntime

        self.session = onnxruntime.InferenceSession(path)
        self.metadata = self.session.get_modelmeta().custom_metadata_map
        schema = self.metadata.get("bitbayes_schema", "none")
        if schema != SCHEMA:
            raise ValueError(
                f"{path} has metadata of schema {schema}, and this server reads schema {SCHEMA}: export the "
                "model again, or take the server of the version that exported it"
            )
        missing = {*OUTPUTS} - {each.name for each in self.session.get_outputs()}
        missing |= {"classes"} - self.metadata.keys()
        if missing:
            raise ValueError(
                f"{path} has no {' and no '.join(sorted(missing))}: export it with score=True, threshold=, "
                "sets= and classes="
            )
        self.likelihood = self.metadata["likelihood"]
        if self.likelihood not in ("categorical", "bernoulli"):
            raise ValueError(
                f"{path} has the likelihood {self.likelihood}: this server is for one class each"
            )
        self.classes = json.loads(self.metadata["classes"])

    def __call__(self, inputs: Any) -> list[dict[str, Any]]:
        """One answer for each row of the inputs.

        Raises an `OverflowError` if inputs or outputs are too large for the network's numbers.
        """
        (given,) = self.session.get_inputs()
        with np.errstate(over="ignore"):
            x = np.asarray(inputs, dtype=np.float32)
        if x.ndim != len(given.shape) or any(
            isinstance(size, int) and size != own for size, own in zip(given.shape, x.shape, strict=True)
        ):
            raise ValueError(f"the inputs have shape {x.shape}: expected {tuple(given.shape)}")
        if np.isnan(x).any():  # a graph checks nothing
            raise ValueError("the inputs hold NaN, or null")
        if not np.isfinite(x).all():
            raise OverflowError("the inputs hold numbers that are too large for float32")
        logits, scores, accepted, sets = self.session.run(OUTPUTS, {given.name: x})
        if self.likelihood == "bernoulli":  # one logit, with an axis or without: that of the second class
            logits = np.stack([np.zeros(len(x), logits.dtype), logits.reshape(len(x))], axis=1)
        if not (np.isfinite(logits).all() and np.isfinite(scores).all()):
            raise OverflowError("the network overflows at these inputs")
        powers = np.exp(logits - logits.max(1, keepdims=True))
        probabilities = powers / powers.sum(1, keepdims=True)
        return [
            {
                "label": self.classes[int(row.argmax())],
                "confidence": float(row.max()),
                "score": float(score),
                "accept": bool(accept),
                "set": [name for name, inside in zip(self.classes, each, strict=True) if inside],
            }
            for row, score, accept, each in zip(probabilities, scores, accepted, sets, strict=True)
        ]


def refuse_constant(name: str) -> None:
    """NaN and Infinity, which Python's JSON takes, are no JSON."""
    raise ValueError(f"the request holds {name}, which is no JSON")


def make_server(classifier: Classifier, port: int) -> ThreadingHTTPServer:
    """A server that answers {"inputs": […]} with {"answers": […]}; port 0 is any that is free.

    A request that is not in this form gets the status 400, and one that overflows the network 422.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                inputs = json.loads(body, parse_constant=refuse_constant)["inputs"]
                status, answer = 200, {"answers": classifier(inputs)}
            except OverflowError as error:
                status, answer = 422, {"error": str(error)}
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                status, answer = 400, {"error": str(error)}
            content = json.dumps(answer, allow_nan=False).encode()
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
