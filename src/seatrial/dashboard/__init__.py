"""The web page over runs, receipts and live telemetry. Reads only: no request changes anything."""
