"""Serve the better of the trained models: POST 64 pixels to /predict, GET /health."""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from network import network

OUTPUTS = Path(os.environ.get("OUTPUTS", "/outputs"))
PORT = int(os.environ.get("PORT", "8000"))
LARGEST_BODY = 10_000  # bytes; 64 numbers need far less

device = "cuda" if torch.cuda.is_available() else "cpu"
best = max((json.loads(file.read_text()) for file in OUTPUTS.glob("*.json")), key=lambda found: found["test_accuracy"])
model = network().to(device)
model.load_state_dict(torch.load(OUTPUTS / f"{best['name']}.pth", map_location=device, weights_only=True))
model.eval()


class Handler(BaseHTTPRequestHandler):
    """One request each; a thread each."""

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(200, {"model": best["name"], "device": device})
        else:
            self.answer(404, {"error": "GET /health or POST /predict"})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        if self.path != "/predict" or length > LARGEST_BODY:
            status = 404 if self.path != "/predict" else 413
            self.answer(status, {"error": f"POST at most {LARGEST_BODY} bytes to /predict"})
            return
        try:
            pixels = torch.tensor(json.loads(self.rfile.read(length))["pixels"], dtype=torch.float32).reshape(1, 64)
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            self.answer(400, {"error": f'expected {{"pixels": [64 numbers]}}: {error}'})
            return
        with torch.no_grad():
            probabilities = model(pixels.to(device)).softmax(1)[0]
        self.answer(200, {"digit": int(probabilities.argmax()), "probability": round(float(probabilities.max()), 4)})

    def answer(self, status: int, body: dict[str, object]) -> None:
        text = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(f"serving {best['name']} on port {PORT}, {device}", flush=True)
ThreadingHTTPServer(("0.0.0.0", PORT), Handler).serve_forever()
