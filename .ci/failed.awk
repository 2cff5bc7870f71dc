# Prints the failures in the output of go test in few lines: the first and the last
# messages of each failed test without its logs, data races, panics, compile
# errors, and the failed packages.

BEGIN { first = 3; last = 5; lines = 5; most = 80; width = 500 }

function cut(s) { return length(s) > width ? substr(s, 1, width) "…" : s }
function say(s) { said[++n] = cut(s) }

# flush prints the messages of the previous test.
function flush(  i) {
	for (i = 1; i <= messages; i++) {
		if (i <= first || i > messages - last) say(message[i])
		else if (i == first + 1) say("    … " messages - first - last " more messages …")
	}
	messages = 0
	inside = 0
}

# depth returns the indentation of a line.
function depth(s) { match(s, /^ */); return RLENGTH }

/^ *--- FAIL: / { flush(); say($0); test = 1; log_at = 0; next }
/^ *--- / || /^ok  / || /^\?  / || /^=== / { flush(); test = 0; next }
/^FAIL[ \t]/ { flush(); test = 0; failed[++packages] = $0; next }
/^panic: / || /^fatal error: / || /WARNING: DATA RACE/ { flush(); say($0); after = 12; next }
/^# / { flush(); say($0); built = 1; next }
/^[^ \t]+\.go:[0-9]+(:[0-9]+)?: / { if (built) { say($0); next } }
after > 0 { after--; say($0); next }
# Skip a log: all lines that are indented more than its first line.
test && log_at > 0 && (depth($0) > log_at || $0 == "") { next }
{ log_at = 0 }
test && /^ +[^ ]+\.go:[0-9]+: log of / { log_at = depth($0); inside = 0; next }
test && /^ +[^ ]+\.go:[0-9]+: / {
	inside = depth($0)
	message[++messages] = cut($0)
	more = 0
	next
}
# Further lines of a message are indented more than its first line.
test && inside > 0 && depth($0) > inside && more < lines { more++; message[messages] = message[messages] "\n" cut($0); next }

END {
	flush()
	print ""
	print "== what failed, in short; the whole is above =="
	for (i = 1; i <= n; i++) {
		shown += split(said[i], x, "\n")
		if (shown > most) { print "… and more, above"; break }
		print said[i]
	}
	for (i = 1; i <= packages; i++) {
		if (i > 20) { print "… and " packages - 20 " more packages"; break }
		print failed[i]
	}
}
