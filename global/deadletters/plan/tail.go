package plan

import (
	"strings"
	"unicode"
)

// Tail returns the last lines of a text, in at most this many bytes of valid UTF-8. A line that does not fit
// loses its beginning. Control characters become U+FFFD, because terminals obey them.
func Tail(text string, lines, bytes int) string {
	text = strings.TrimRight(text, "\r\n")
	text = text[max(0, len(text)-4*bytes):] // the rest cannot be in the result
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\r\n", "\n"))
	from := len(text)
	for ; lines > 0 && from >= 0; lines-- {
		from = strings.LastIndexByte(text[:from], '\n')
	}
	text = text[from+1:]
	if len(text) > bytes {
		text = strings.ToValidUTF8(text[len(text)-bytes:], "")
	}
	return text
}

// Join returns the ends of stdout and stderr together, within the bounds of Tail. stderr, which mostly says what
// was wrong, gets what it needs, at most three quarters, and stdout gets the rest.
func Join(stdout, stderr string, lines, bytes int) string {
	most := lines - min(lines/4, strings.Count(strings.TrimRight(stdout, "\n"), "\n")+1)
	if strings.TrimSpace(stdout) == "" {
		stdout, most = "", lines
	}
	end := Tail(stderr, most, bytes*3/4)
	if end == "" {
		return Tail(stdout, lines, bytes)
	}
	begin := Tail(stdout, lines-strings.Count(end, "\n")-1, bytes-len(end)-1)
	if begin == "" {
		return end
	}
	return begin + "\n" + end
}
