package auditsink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nusa-scheduler/nusa/security/audit"
)

const (
	// maxQueued bounds the entries that wait. More are dropped and counted.
	maxQueued = 8192
	// maxTogether bounds the entries that are written together.
	maxTogether = 256
	// retry is the pause after a failure.
	retry = time.Second
)

// Config says where entries are written. Empty: nowhere.
type Config struct {
	// File is the path of a file of JSON lines. A file that was renamed or removed is opened again.
	File string
	// Syslog is the address of a syslog server: unix:PATH, or HOST:PORT for TCP.
	Syslog string
}

// Check returns an error if the configuration is not valid.
func (c Config) Check() error {
	if c.Syslog == "" {
		return nil
	}
	_, _, err := syslogAddress(c.Syslog)
	return err
}

// Sink writes entries. The zero value and nil write nothing.
type Sink struct {
	cfg     Config
	host    string
	log     *slog.Logger
	entries chan queued
	dropped prometheus.Counter
	file    *os.File
	syslog  syslog
	failed  string // the last failure that was logged
}

// queued is an entry with the name of its trail.
type queued struct {
	trail string
	entry audit.Entry
}

// New returns a Sink. host is the name of this server in syslog. It returns nil if nothing is to be
// written.
func New(cfg Config, host string, log *slog.Logger) *Sink {
	if cfg == (Config{}) {
		return nil
	}
	return &Sink{
		cfg: cfg, host: host, log: log, entries: make(chan queued, maxQueued), syslog: syslog{address: cfg.Syslog},
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nusa_audit_sink_dropped_total", Help: "Entries of the audit trail that were not written to the file or to syslog."}),
	}
}

// Register registers the metric of the sink.
func (s *Sink) Register(r prometheus.Registerer) error {
	if s == nil {
		return nil
	}
	return r.Register(s.dropped)
}

// Put queues entries of a trail. It never waits: if the queue is full, the entry is dropped and counted.
func (s *Sink) Put(trail string, entries ...audit.Entry) {
	if s == nil {
		return
	}
	for _, e := range entries {
		select {
		case s.entries <- queued{trail, e}:
		default:
			s.dropped.Inc()
		}
	}
}

// Run writes the queued entries until ctx ends, and then those that wait.
func (s *Sink) Run(ctx context.Context) error {
	if s == nil {
		<-ctx.Done()
		return nil
	}
	defer s.close()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case q := <-s.entries:
			s.deliver(ctx, s.more(q))
		}
	}
	for len(s.entries) > 0 {
		if !s.write(s.more(<-s.entries)) {
			break
		}
	}
	return nil
}

// more returns an entry and those that wait behind it.
func (s *Sink) more(first queued) []queued {
	out := []queued{first}
	for range min(len(s.entries), maxTogether-1) {
		out = append(out, <-s.entries) // only Run takes entries
	}
	return out
}

// deliver writes entries, and tries again until it succeeds or ctx ends. Meanwhile the queue fills.
func (s *Sink) deliver(ctx context.Context, some []queued) {
	for !s.write(some) {
		select {
		case <-ctx.Done():
			s.dropped.Add(float64(len(some)))
			return
		case <-time.After(retry):
		}
	}
}

// write writes entries to each place that does not have them yet.
func (s *Sink) write(some []queued) (ok bool) {
	err := errors.Join(s.writeFile(some), s.syslog.send(s.host, some))
	switch {
	case err == nil:
		s.failed = ""
	case err.Error() != s.failed:
		s.failed = err.Error()
		s.log.Warn("entries of the audit trail are not written yet", "error", err)
	}
	return err == nil
}

// line is an entry in the file.
type line struct {
	Trail string `json:"trail"`
	audit.Fields
	Hash string `json:"hash"`
}

// jsonOf returns an entry as one line of JSON.
func jsonOf(q queued) []byte {
	e := q.entry
	fields := e.Fields()
	fields.Time = e.Time.UTC()
	b, err := json.Marshal(line{Trail: q.trail, Fields: fields, Hash: e.Hash().String()})
	if err != nil {
		return nil // texts and numbers can always be encoded
	}
	return append(b, '\n')
}

// writeFile appends entries to the file.
func (s *Sink) writeFile(some []queued) error {
	if s.cfg.File == "" {
		return nil
	}
	if s.file != nil && !s.same() {
		s.close()
	}
	if s.file == nil {
		f, err := os.OpenFile(s.cfg.File, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return fmt.Errorf("the file of the audit trail: %w", err)
		}
		s.file = f
	}
	var b bytes.Buffer
	for _, q := range some {
		b.Write(jsonOf(q))
	}
	if _, err := s.file.Write(b.Bytes()); err != nil {
		s.close()
		return fmt.Errorf("the file of the audit trail: %w", err)
	}
	return nil
}

// same reports whether the open file still has its name.
func (s *Sink) same() bool {
	open, err := s.file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(s.cfg.File)
	return err == nil && os.SameFile(open, named)
}

func (s *Sink) close() {
	if s.file != nil {
		_ = s.file.Close() // each write was checked
		s.file = nil
	}
	s.syslog.close()
}
