"""The parts of the gateway benchmark: an engine, servers, load and figures."""
