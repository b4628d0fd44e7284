"""SERVER: from the clients' updates to the mean the server adds, and the bytes it took. Lines 10 and 11."""
