"""What clients have by name: sessions, snapshots, saved slots, responses."""
