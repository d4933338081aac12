# Shows how far `pip install --progress-bar off` is: a line for each larger download, and the count at the end.
/^ *Collecting / { collected++ }
/^ *Downloading .*MB\)/ { sub(/^ *Downloading /, ""); sub(/-cp[0-9].*whl|-py[0-9].*whl/, ""); printf "      %s\n", $0; fflush() }
/^Installing collected packages/ { printf "      installing %d packages; this is the longest part\n", split($0, names, ","); fflush() }
/^ *(ERROR|error|WARNING: Retry)/ { failed = 1 }
failed { print; fflush() }
END { if (!failed) print "      done" }
