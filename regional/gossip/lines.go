package gossip

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// linesMost bounds the warnings with one text within linesWithin, because others may cause them
// at any rate.
const linesMost, linesWithin = 3, 10 * time.Second

// lines writes memberlist's log. It bounds the warnings.
type lines struct {
	log *slog.Logger

	mu sync.Mutex
	// next is the end of the present interval. logged counts its warnings by text.
	next   time.Time
	logged map[string]int
	quiet  int
}

// warn logs a warning about a peer, unless there were too many. from and err may be empty.
func (l *lines) warn(text, from string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !now.Before(l.next) {
		l.next, l.logged = now.Add(linesWithin), map[string]int{}
	}
	if l.logged[text] >= linesMost || len(l.logged) > 16 {
		l.quiet++
		return
	}
	l.logged[text]++
	args := []any{"others", l.quiet}
	l.quiet = 0
	if from != "" {
		args = append(args, "from", from)
	}
	if err != nil {
		args = append(args, "error", err)
	}
	l.log.Warn(text, args...)
}

// meanings are memberlist's texts about peers that are refused, and what they mean.
var meanings = []struct{ text, meaning string }{
	{"encryption is not configured", "gossip of another server is encrypted, and this server has no key: give it the keys of the region (--gossip-key-file)"},
	{"remote state is not encrypted", notEncrypted},
	{"Decrypt packet failed", noKey},
	{"no installed keys could decrypt", noKey},
	{"unsupported encryption version", noKey},
	{"to decrypt", noKey}, // nothing, or too little to decrypt
	{"unacceptable label", "gossip is refused: the sender belongs to another region"},
}

const (
	notEncrypted = "gossip is refused: the sender does not encrypt: give it the keys of the region (--gossip-key-file)"
	noKey        = "gossip is refused: the sender has none of the keys of this server, or sends something else: compare the files of --gossip-key-file"
)

// meaning returns what a text of memberlist means; "" if it is about something else.
func meaning(text string) string {
	for _, m := range meanings {
		if strings.Contains(text, m.text) {
			return m.meaning
		}
	}
	return ""
}

// Write turns memberlist's lines "[LEVEL] memberlist: text" into log records. Errors of memberlist
// become warnings, because memberlist recovers by itself.
func (l *lines) Write(p []byte) (int, error) {
	line := strings.TrimSpace(string(p))
	_, text, _ := strings.Cut(line, "memberlist: ")
	if !strings.HasPrefix(line, "[ERR]") {
		l.log.Log(context.Background(), slog.LevelDebug, "gossip: "+text)
		return len(p), nil
	}
	_, from, _ := strings.Cut(text, " from=")
	if m := meaning(text); m != "" {
		l.warn(m, from, nil)
	} else {
		what, _, _ := strings.Cut(text, ": ")
		l.warn("gossip: "+what, "", &lineError{text})
	}
	return len(p), nil
}

// lineError is a line of memberlist's log about an error.
type lineError struct{ text string }

func (e *lineError) Error() string { return e.text }
