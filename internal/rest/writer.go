package rest

import (
	"compress/gzip"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// commitAfter is how long a stream without messages waits before it sends its headers.
	commitAfter = time.Second
	// pingEvery is how often a quiet stream sends something, so that both ends and what is between
	// them see that it lives.
	pingEvery = 15 * time.Second
	// slowestUsual is how long a write may take. A reader that takes longer is gone or too slow.
	slowestUsual = 30 * time.Second
	// smallest is the size of the smallest response that is compressed, in bytes.
	smallest = 1 << 10
	// maxCompressed bounds the streams that are compressed at a time, because each takes memory.
	maxCompressed = 64
)

// slowest is slowestUsual, apart from tests.
var slowest = slowestUsual

// compressed has a place for each stream that is compressed.
var compressed = make(chan struct{}, maxCompressed)

// writer writes a response: compressed if the client accepts that, and with a bound on the time of
// each write. It may be used by several goroutines.
type writer struct {
	http.ResponseWriter
	control *http.ResponseController
	// gzips: the client accepts gzip.
	gzips bool
	// streams: the response is a stream. ping is what a quiet stream sends.
	streams bool
	ping    string

	mu sync.Mutex
	// status is 0 until the headers are sent.
	status int
	zip    *gzip.Writer
	// sent: something was written since the last tick.
	sent bool
	// done: the response is complete, or the client has left. The rest is dropped.
	done bool
	// left ends the call if the client has left.
	left func()
	// begun is called when a stream begins, after the server has accepted the call.
	begun func()
}

func newWriter(w http.ResponseWriter, r *http.Request) *writer {
	out := &writer{ResponseWriter: w, control: http.NewResponseController(w), left: func() {}, begun: func() {}}
	for _, part := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		coding, q, _ := strings.Cut(strings.TrimSpace(part), ";")
		if coding == "gzip" && strings.TrimSpace(q) != "q=0" {
			out.gzips = true
		}
	}
	return out
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *writer) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.header(status, smallest)
}

// header sends the headers. size is that of the body, as far as it is known. The caller holds mu.
func (w *writer) header(status, size int) {
	if w.status != 0 || w.done {
		return
	}
	w.status = status
	_ = w.control.SetWriteDeadline(time.Now().Add(slowest))
	h := w.Header()
	h.Add("Vary", "Accept-Encoding")
	h.Set("X-Content-Type-Options", "nosniff")
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store")
	}
	if w.gzips && size >= smallest && status != http.StatusNotModified && status != http.StatusNoContent && w.mayCompress() {
		h.Set("Content-Encoding", "gzip")
		h.Del("Content-Length")
		w.zip, _ = gzip.NewWriterLevel(w.ResponseWriter, gzip.BestSpeed) // the level is valid
	}
	w.ResponseWriter.WriteHeader(status)
	if w.streams {
		w.begun()
	}
}

// mayCompress reports whether the response may take the memory of a compression.
func (w *writer) mayCompress() bool {
	select {
	case compressed <- struct{}{}:
		return true
	default:
		return false
	}
}

// Write implements http.ResponseWriter.
func (w *writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return len(p), nil
	}
	size := len(p)
	if w.streams {
		size = smallest
	}
	w.header(http.StatusOK, size)
	w.sent = true
	_ = w.control.SetWriteDeadline(time.Now().Add(slowest))
	w.check(w.write(p))
	return len(p), nil
}

// write writes to the client, compressed or not. The caller holds mu.
func (w *writer) write(p []byte) error {
	if w.zip != nil {
		_, err := w.zip.Write(p)
		return err
	}
	_, err := w.ResponseWriter.Write(p)
	return err
}

// check ends the call if a write has failed. The caller holds mu.
func (w *writer) check(err error) {
	if err != nil {
		w.done = true
		w.left()
	}
}

// FlushError is for http.ResponseController.
func (w *writer) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flush()
	return nil
}

// flush sends what was written. The caller holds mu.
func (w *writer) flush() {
	if w.zip != nil && !w.done {
		w.check(w.zip.Flush())
	}
	if !w.done {
		w.check(w.control.Flush())
	}
}

// fail sends a problem, if the headers were not sent yet. It reports whether it did that.
func (w *writer) fail(p *problem, r *http.Request) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.status != 0 {
		return false
	}
	w.gzips = false
	w.status = p.Status
	p.write(w.ResponseWriter, r)
	w.done = true
	return true
}

// end completes the response.
func (w *writer) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.streams {
		w.header(http.StatusOK, 0)
	}
	if w.zip != nil {
		_ = w.zip.Close() // fails if the client has left
		w.zip = nil
		<-compressed
	}
	w.done = true
}

// keep sends the headers of a stream that has no message for a while, and then something from time to
// time, until the returned function is called.
func (w *writer) keep() (stop func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		timer := time.NewTimer(commitAfter)
		defer timer.Stop()
		for {
			select {
			case <-done:
				return
			case <-timer.C:
				w.tick()
				timer.Reset(pingEvery)
			}
		}
	}()
	return func() {
		close(done)
		<-stopped
	}
}

// tick sends the headers, or what a quiet stream sends.
func (w *writer) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	quiet := !w.sent
	w.sent = false
	switch {
	case w.done:
		return
	case w.status == 0:
		w.header(http.StatusOK, smallest)
	case !quiet:
		return
	}
	_ = w.control.SetWriteDeadline(time.Now().Add(slowest))
	w.check(w.write([]byte(w.ping)))
	w.flush()
}
