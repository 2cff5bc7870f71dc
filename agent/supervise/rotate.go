package supervise

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// rotor writes a stream into files NAME.0, NAME.1, …: each at most size bytes,
// the newest files kept.
type rotor struct {
	name   string
	files  int
	size   int64
	number int
	file   *os.File
	filled int64
}

func newRotor(name string, files int, size int64) (*rotor, error) {
	r := &rotor{name: name, files: max(1, files), size: max(4096, size)}
	return r, r.open()
}

// logName is the file of a number.
func logName(stream string, number int) string { return fmt.Sprintf("%s.%d", stream, number) }

func (r *rotor) open() error {
	f, err := os.OpenFile(logName(r.name, r.number), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	r.file, r.filled = f, 0
	return nil
}

// Write never fails the command: when the disk is full output is lost.
func (r *rotor) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		if r.filled >= r.size {
			if err := r.next(); err != nil {
				return len(p), nil
			}
		}
		n := min(int64(len(rest)), r.size-r.filled)
		if _, err := r.file.Write(rest[:n]); err != nil {
			return len(p), nil
		}
		r.filled += n
		rest = rest[n:]
	}
	return len(p), nil
}

func (r *rotor) next() error {
	r.file.Close()
	r.number++
	if old := r.number - r.files; old >= 0 {
		_ = os.Remove(logName(r.name, old))
	}
	return r.open()
}

// copyFrom reads until the end of the pipe and says after each piece that the
// log has grown.
func (r *rotor) copyFrom(pipe io.Reader, grown func()) {
	buf := make([]byte, 32<<10)
	for {
		n, err := pipe.Read(buf)
		if n > 0 {
			_, _ = r.Write(buf[:n])
			grown()
		}
		if err != nil {
			r.file.Close()
			return
		}
	}
}

// broadcast wakes any number of waiters; wake-ups in between are one.
type broadcast struct {
	mu     sync.Mutex
	ch     chan struct{}
	closed bool
}

func newBroadcast() *broadcast { return &broadcast{ch: make(chan struct{})} }

// wait returns a channel that is closed at the next notify, and whether there
// will be one.
func (b *broadcast) wait() (<-chan struct{}, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ch, !b.closed
}

func (b *broadcast) notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		close(b.ch)
		b.ch = make(chan struct{})
	}
}

func (b *broadcast) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.closed = true
		close(b.ch)
	}
}
