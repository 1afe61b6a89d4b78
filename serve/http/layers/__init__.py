"""What every request passes before it is routed, outermost first: requests, hosts, auth, rate, body_size."""
