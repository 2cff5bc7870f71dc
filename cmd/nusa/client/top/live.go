package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	xterm "github.com/charmbracelet/x/term"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// frame is the least time between two drawings.
	frame = 100 * time.Millisecond
	// clockEvery is how often the page is drawn without a change, for its clock and countdowns.
	clockEvery = time.Second
)

// Control sequences of a terminal.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // the alternate screen, without a cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	toTop       = "\x1b[H"
	toLineEnd   = "\x1b[K"
	toScreenEnd = "\x1b[J"
)

// onTerminal shows the page on the terminal of this process.
func onTerminal(c *cli.Session, p *page) error {
	l := &liveView{c: c, p: p, keys: make(chan byte, 16), height: func() int { return term.TerminalHeight(c.Out) }}
	if in, ok := c.Cmd.InOrStdin().(*os.File); ok && xterm.IsTerminal(in.Fd()) {
		was, err := xterm.MakeRaw(in.Fd())
		if err != nil {
			return fmt.Errorf("the keyboard cannot be read: %w", err)
		}
		defer func() { _ = xterm.Restore(in.Fd(), was) }()
		go l.readKeys(c.Ctx, in) // a read of the keyboard cannot be interrupted, so it ends with the process
	}
	return l.run()
}

// liveView shows the page until the user ends it.
type liveView struct {
	c *cli.Session
	p *page
	// keys are the bytes of the keyboard. height is that of the terminal.
	keys   chan byte
	height func() int

	entered bool
	// shown is what the terminal shows.
	shown string
	// escape are the bytes of a key that has several.
	escape string
}

// readKeys sends the keyboard's bytes, until the end of the input.
func (l *liveView) readKeys(ctx context.Context, in io.Reader) {
	buf := make([]byte, 16)
	for {
		n, err := in.Read(buf)
		for _, b := range buf[:n] {
			select {
			case l.keys <- b:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// arrival is a message of the stream, or a notice about the connection.
type arrival struct {
	update *nusav1.OverviewUpdate
	notice string
}

// run follows the state and draws it.
func (l *liveView) run() error {
	ctx, cancel := context.WithCancel(l.c.Ctx)
	arrivals, ended := make(chan arrival), make(chan error, 1)
	go func() { ended <- l.follow(ctx, arrivals) }()
	defer func() {
		cancel()
		<-ended
	}()
	defer l.leave()
	ticks := time.NewTicker(frame)
	defer ticks.Stop()
	dirty, drawn := false, time.Time{}
	for {
		select {
		case a := <-arrivals:
			l.p.notice = a.notice
			if a.update != nil {
				l.p.apply(a.update, time.Now())
			}
			dirty = true
		case b := <-l.keys:
			if l.key(b) {
				return nil
			}
			dirty = true
		case now := <-ticks.C:
			if !l.p.m.Synced || !dirty && now.Sub(drawn) < clockEvery {
				continue
			}
			dirty, drawn = false, now
			if err := l.draw(); err != nil {
				return err
			}
		case err := <-ended:
			ended <- nil // for the deferred function
			return err
		}
	}
}

// follow sends the messages of the stream, which it opens again after a break.
func (l *liveView) follow(ctx context.Context, out chan<- arrival) error {
	send := func(a arrival) error {
		select {
		case out <- a:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r := &cli.Resumed{Session: l.c, Tell: func(text string) { _ = send(arrival{notice: text}) }}
	return r.Follow(ctx, func(answered func()) error {
		stream, err := nusav1.NewOverviewClient(l.c.Conn).Watch(ctx, &nusav1.WatchOverviewRequest{})
		if err != nil {
			return err
		}
		for {
			u, err := stream.Recv()
			if err != nil {
				return err
			}
			answered()
			if err := send(arrival{update: u}); err != nil {
				return err
			}
		}
	})
}

// Bytes of keys.
const (
	ctrlC = 3
	ctrlD = 4
	esc   = 0x1b
)

// key does what a key of the keyboard says. It returns true at the end.
func (l *liveView) key(b byte) (end bool) {
	if l.escape == "\x1b" && b != '[' && b != 'O' {
		l.escape = "" // the key Escape alone
	}
	if l.escape != "" || b == esc {
		l.escape += string(rune(b))
		switch l.escape {
		case "\x1b", "\x1b[", "\x1bO", "\x1b[5", "\x1b[6":
			return false // more follows
		case "\x1b[A", "\x1bOA":
			l.p.scroll(-1)
		case "\x1b[B", "\x1bOB":
			l.p.scroll(1)
		case "\x1b[5~":
			l.p.scroll(-l.p.room)
		case "\x1b[6~":
			l.p.scroll(l.p.room)
		}
		l.escape = ""
		return false
	}
	switch b {
	case 'q', 'Q', ctrlC, ctrlD:
		return true
	case 's':
		l.p.order, l.p.from = (l.p.order+1)%len(orders), 0
	case 'S':
		l.p.order, l.p.from = (l.p.order+len(orders)-1)%len(orders), 0
	case 'r':
		l.p.reverse, l.p.from = !l.p.reverse, 0
	case 'k':
		l.p.scroll(-1)
	case 'j':
		l.p.scroll(1)
	}
	return false
}

// draw overwrites the screen, if the page has changed. It does not clear the screen first, because that
// would flicker.
func (l *liveView) draw() error {
	w := l.c.Screen()
	var text strings.Builder
	height := max(l.height(), 2)
	l.p.write(w.Onto(&text), height)
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	var out strings.Builder
	out.WriteString(toTop)
	for i, line := range lines[:min(len(lines), height)] {
		if i > 0 {
			out.WriteString("\r\n")
		}
		if w.Width > 0 {
			line = term.Fit(line, w.Width)
		}
		out.WriteString(line + toLineEnd)
	}
	out.WriteString(toScreenEnd)
	if out.String() == l.shown {
		return nil
	}
	l.shown = out.String()
	begin := ""
	if !l.entered {
		l.entered, begin = true, enterScreen
	}
	_, err := io.WriteString(l.c.Out, begin+l.shown)
	return err
}

// leave shows what the terminal showed before.
func (l *liveView) leave() {
	if !l.entered {
		return
	}
	if _, err := io.WriteString(l.c.Out, leaveScreen); err != nil && !errors.Is(err, os.ErrClosed) {
		l.c.Warn("the terminal: %v", err)
	}
}
