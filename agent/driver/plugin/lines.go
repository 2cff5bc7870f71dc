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

// Bounds of a plugin's lines in the agent's log.
const (
	maxLine        = 1 << 10 // bytes
	linesPerSecond = 20
	linesAtOnce    = 100
)

// lines copies a plugin's output to the agent's log. It retains the line that says why the
// plugin ended.
type lines struct {
	log   *slog.Logger
	limit *rate.Limiter

	mu      sync.Mutex
	last    string
	telling bool // last begins a crash report, so later lines do not replace it
	left    int  // number of lines omitted since the latest line in the log
}

func newLines(log *slog.Logger) *lines {
	return &lines{log: log, limit: rate.NewLimiter(linesPerSecond, linesAtOnce)}
}

// read reads the output to its end, in bounded memory.
func (l *lines) read(r io.Reader) {
	b := bufio.NewReaderSize(r, maxLine)
	cut := false // the piece continues a line that was already cut
	for {
		piece, err := b.ReadSlice('\n')
		full := errors.Is(err, bufio.ErrBufferFull)
		if !cut && len(piece) > 0 {
			l.add(string(piece), full)
		}
		cut = full
		if err != nil && !full {
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
	// A Go program prints the reason of a crash before it prints its goroutines.
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

// flush logs the number of omitted lines. The caller holds mu.
func (l *lines) flush() {
	if l.left > 0 {
		l.log.Warn("plugin logs too much: lines are omitted", "lines_left_out", l.left)
		l.left = 0
	}
}

// end returns the line that says why the plugin ended. Call end after the output has ended.
func (l *lines) end() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
	return l.last
}
