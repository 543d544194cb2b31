"""Who is let in: keys, their allowances, hosts and origins; and where they come from."""
