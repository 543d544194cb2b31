"""Objects that clients name: sessions, snapshots, saved slots, responses."""
