"""The asking side without sockets: what clients, tools and Spark conclude from what nodes tell."""
