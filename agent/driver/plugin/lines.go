package plugin

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"

	"golang.org/x/time/rate"
)

// Bounds of what a plugin may write into the agent's log.
const (
	maxLine        = 1 << 10 // bytes
	linesPerSecond = 20
	linesAtOnce    = 100
)

// lines passes a plugin's output on to the agent's log and remembers the line
// that tells why it ended.
type lines struct {
	log   *slog.Logger
	limit *rate.Limiter

	mu      sync.Mutex
	last    string
	telling bool // last begins a report of a crash, of which the rest says less
	left    int  // lines left out of the log since the last one in it
}

func newLines(log *slog.Logger) *lines {
	return &lines{log: log, limit: rate.NewLimiter(linesPerSecond, linesAtOnce)}
}

// read until the end, in bounded memory whatever comes.
func (l *lines) read(r io.Reader) {
	b := bufio.NewReaderSize(r, maxLine)
	for cut := false; ; {
		piece, err := b.ReadSlice('\n')
		full := errors.Is(err, bufio.ErrBufferFull)
		if !cut && len(piece) > 0 {
			l.add(string(piece), full)
		}
		if cut = full; err != nil && !full {
			return
		}
	}
}

func (l *lines) add(line string, cut bool) {
	line = strings.TrimSpace(clip(strings.TrimRight(line, "\r\n"), maxLine))
	if line == "" {
		return
	}
	if cut {
		line += "…"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// A Go program says why it ends before all of its goroutines.
	crash := strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")
	if crash || !l.telling {
		l.last, l.telling = line, crash
	}
	if !l.limit.Allow() {
		l.left++
		return
	}
	l.flush()
	l.log.Info("plugin says", "line", line)
}

// flush says how much was left out. The caller holds mu.
func (l *lines) flush() {
	if l.left > 0 {
		l.log.Warn("plugin says too much", "lines_left_out", l.left)
		l.left = 0
	}
}

// end is the last line, once there will be no more.
func (l *lines) end() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
	return l.last
}
