package alloc

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/job/doc"
)

const (
	// resumeBytes is how much of the end of a stream is read again after a broken
	// connection, to find where the printed output ended. So many bytes fit in one chunk.
	resumeBytes = 16 << 10
	// seenBytes is how much of the end of the printed output is compared.
	seenBytes = 256
	// sameBreak is the time within which equal lines about the connection are printed only
	// once.
	sameBreak = 2 * time.Second
)

// logPrinter writes whole lines of several streams.
type logPrinter struct {
	*cli.Session
	mu   sync.Mutex
	said map[string]time.Time // maps the beginning of a line about the connection to the time when it was printed
}

// tellOnce prints a line about the connection, but only once for all tasks whose
// connections break together.
func (p *logPrinter) tellOnce(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	what, _, _ := strings.Cut(text, " after ") // the rest is the length of the break, which differs between the tasks
	if at, said := p.said[what]; said && time.Since(at) < sameBreak {
		return
	}
	if p.said == nil {
		p.said = map[string]time.Time{}
	}
	p.said[what] = time.Now()
	p.Warn("%s", text)
}

// to returns the writers for the two streams of a task. Without head they write bytes as
// they arrive. With head they write whole lines, each after head. With -o json|yaml they
// write records. Lines and records wait until turn is closed, unless turn is nil.
func (p *logPrinter) to(t logged, head string, turn <-chan struct{}) [2]io.Writer {
	plain := [2]io.Writer{p.Out, p.Cmd.ErrOrStderr()}
	if p.Output == "table" && head == "" {
		return plain
	}
	var out [2]io.Writer
	for i, w := range plain {
		name := []string{"stdout", "stderr"}[i]
		emit := func(line []byte) error {
			_, err := io.WriteString(w, p.Style.Faint(head)+string(line)+"\n")
			return err
		}
		if p.Output != "table" {
			emit = func(line []byte) error { return p.record(t, name, line) }
		}
		out[i] = &lineWriter{mu: &p.mu, turn: turn, emit: emit}
	}
	return out
}

// record prints one line as JSON or YAML.
func (p *logPrinter) record(t logged, stream string, line []byte) error {
	n := &doc.Node{Kind: doc.Map}
	for _, f := range [][2]string{{"allocation", t.alloc.GetId()}, {"instance", instance(t.alloc)}, {"task", t.task}, {"stream", stream}, {"text", string(bytes.ToValidUTF8(line, []byte("�")))}} {
		n.Add(f[0], &doc.Node{Kind: doc.String, Text: f[1]})
	}
	if p.Output == "json" {
		_, err := fmt.Fprintf(p.Out, "%s\n", n.Compact())
		return err
	}
	_, err := fmt.Fprintf(p.Out, "---\n%s", n.YAML())
	return err
}

// lineWriter emits whole lines. flush also emits an unfinished line.
type lineWriter struct {
	mu   *sync.Mutex     // guards the output of emit
	turn <-chan struct{} // closed when lines may be emitted; nil means at once
	emit func(line []byte) error
	rest []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	if w.turn != nil {
		<-w.turn
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for rest := p; len(rest) > 0; {
		line, after, found := bytes.Cut(rest, []byte{'\n'})
		w.rest = append(w.rest, line...)
		rest = after
		if found || len(w.rest) >= maxLine {
			if err := w.emit(w.rest); err != nil {
				return 0, err
			}
			w.rest = w.rest[:0]
		}
	}
	return len(p), nil
}

func (w *lineWriter) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.rest) > 0 {
		_ = w.emit(w.rest) // an error means that no process reads the output any more
		w.rest = nil
	}
}

// seenOutput writes output and remembers the end of that output. After resume it omits what
// it has already written.
type seenOutput struct {
	to       io.Writer
	tail     []byte
	resuming bool
}

// resume says that the next bytes come from a new stream, which repeats some output.
func (w *seenOutput) resume() { w.resuming = true }

func (w *seenOutput) Write(p []byte) (int, error) {
	fresh := p
	if w.resuming && len(p) > 0 {
		w.resuming = false
		if i := bytes.LastIndex(p, w.tail); i >= 0 && len(w.tail) > 0 {
			fresh = p[i+len(w.tail):]
		}
	}
	w.tail = append(w.tail, fresh...)
	w.tail = w.tail[max(0, len(w.tail)-seenBytes):]
	if len(fresh) == 0 {
		return len(p), nil
	}
	_, err := w.to.Write(fresh)
	return len(p), err
}
