"""Who is let in: keys, their allowances, hosts and origins."""
