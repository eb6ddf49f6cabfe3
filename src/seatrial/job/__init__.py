"""Job: what the user asks for. Plan: the same, resolved. Both pure data; nothing here touches an engine."""
