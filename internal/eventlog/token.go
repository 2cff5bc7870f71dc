package eventlog

import (
	"strconv"
	"strings"
)

// maxToken is the length of the longest token, in bytes.
const maxToken = 256

// Token returns the token of an event: a watch that begins with the token continues after the event.
func Token(log string, number uint64) string { return log + "-" + strconv.FormatUint(number, 10) }

// ParseToken returns the log and the number in a token. A plain number is a token, too: log is then
// empty, and the called server's log is meant. ok is false for the empty token.
func ParseToken(token string) (log string, number uint64, ok bool) {
	at := strings.LastIndexByte(token, '-')
	number, err := strconv.ParseUint(token[at+1:], 10, 64)
	if err != nil || at == 0 || len(token) > maxToken {
		return "", 0, false
	}
	return token[:max(0, at)], number, true
}

// IsToken reports whether the text has the form of a token: a log, a hyphen and a number, or only a
// number. The empty token, which means "from now on", is valid too.
func IsToken(token string) bool {
	_, _, ok := ParseToken(token)
	return token == "" || ok
}
