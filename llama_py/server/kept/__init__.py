"""Objects that clients name: sessions, saved slots, responses."""
