"""What is deployed with pliant: alerts, dashboards, units and manifests, each checked by its own tool."""
