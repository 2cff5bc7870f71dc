package supervise

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// rotor writes a stream into files NAME.0, NAME.1, and so on, each of at most size bytes.
// It retains only the newest files. The first file is made with the first output.
type rotor struct {
	name   string
	files  int
	size   int64
	number int
	file   *os.File // nil if no file was opened yet or the open failed
	filled int64
	// lost counts the bytes that could not be written since the last successful write.
	// cause is the error of those writes.
	lost  int64
	cause error
}

func newRotor(name string, files int, size int64) *rotor {
	return &rotor{name: name, files: max(1, files), size: max(4096, size)}
}

// logName returns the name of a stream's file.
func logName(stream string, number int) string { return fmt.Sprintf("%s.%d", stream, number) }

func (r *rotor) open() error {
	f, err := os.OpenFile(logName(r.name, r.number), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	r.file, r.filled = f, 0
	return nil
}

// Write never returns an error, so that a full disk does not fail the command. While the
// disk is full, output is lost. After that the log says how much was lost.
func (r *rotor) Write(p []byte) (int, error) {
	if r.lost > 0 {
		note := fmt.Sprintf("\n[nusa: %d bytes of output were lost here: %v]\n", r.lost, r.cause)
		if n, err := r.write([]byte(note)); n < len(note) {
			r.lost, r.cause = r.lost+int64(len(p)), err
			return len(p), nil
		}
		r.lost, r.cause = 0, nil
	}
	if n, err := r.write(p); n < len(p) {
		r.lost, r.cause = int64(len(p)-n), err
	}
	return len(p), nil
}

// write writes into as many files as needed. err says why only a part was written.
func (r *rotor) write(p []byte) (written int, err error) {
	for written < len(p) {
		if r.filled >= r.size || r.file == nil {
			if err := r.next(); err != nil {
				return written, err
			}
		}
		n, err := r.file.Write(p[written:min(int64(len(p)), int64(written)+r.size-r.filled)])
		r.filled += int64(n)
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// next opens the next file. If the previous call could not open its file, next tries to
// open the same file again. So no older file is removed without need.
func (r *rotor) next() error {
	if r.file != nil {
		r.file.Close()
		r.file = nil
		r.number++
		if old := r.number - r.files; old >= 0 {
			_ = os.Remove(logName(r.name, old))
		}
	}
	return r.open()
}

// copyFrom copies the output until the end of the pipe, and calls grown after each piece.
func (r *rotor) copyFrom(pipe io.Reader, grown func()) {
	buf := make([]byte, 32<<10)
	for {
		n, err := pipe.Read(buf)
		if n > 0 {
			_, _ = r.Write(buf[:n])
			grown()
		}
		if err != nil {
			if r.file != nil {
				r.file.Close()
			}
			return
		}
	}
}

// broadcast wakes any number of waiting goroutines. Several notifications between two waits
// count as one.
type broadcast struct {
	mu     sync.Mutex
	ch     chan struct{}
	closed bool
}

func newBroadcast() *broadcast { return &broadcast{ch: make(chan struct{})} }

// wait returns a channel that the next notify closes. It returns false if no further notify
// will come.
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
