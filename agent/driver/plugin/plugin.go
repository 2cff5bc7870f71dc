package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/nusa-scheduler/nusa/agent/driver"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Config configures a Driver.
type Config struct {
	// Name is the name of the driver in job files. It is required.
	Name string
	// Path is the absolute path of the executable and is required. Args are its arguments.
	Path string
	Args []string
	// Dir is the absolute path of the plugin's folder and is required. Only this Driver
	// uses the folder.
	Dir string
	// AgentVersion is passed to the plugin, for people.
	AgentVersion string
	// Logger logs the plugin's output, its starts and its ends. Default: they are
	// discarded.
	Logger *slog.Logger
	// Changed is called when the result of Fingerprint has changed. It may be nil.
	Changed func()
}

// data returns the folder in which the plugin keeps its data.
func (c Config) data() string { return filepath.Join(c.Dir, "data") }

// limits are the time limits that driver.proto documents for plugins.
type limits struct {
	launch time.Duration // until the response to the handshake
	quick  time.Duration // a call that only reads
	slow   time.Duration // limit of a call that changes something, in addition to the call's grace
	start  time.Duration
	poll   time.Duration // one Wait, in addition to quick
	ping   time.Duration // between two health checks
	stop   time.Duration // time from the close of the plugin's standard input until the plugin is killed
	steady time.Duration // a process that ended after a longer time did not fail at its start
}

var defaults = limits{
	launch: 10 * time.Second, quick: 10 * time.Second, slow: time.Minute, start: 10 * time.Minute,
	poll: 30 * time.Second, ping: 10 * time.Second, stop: 5 * time.Second, steady: time.Minute,
}

const (
	// maxMissed is the number of health checks in a row after which a plugin that does not
	// respond is killed. It is also the number of responses that a call of Wait may miss.
	maxMissed = 2
	// maxCrashes is the number of crashes of the plugin after which a patient call fails.
	maxCrashes = 3
)

// Driver makes a plugin usable for the agent. Make a Driver with New and end it with Close.
type Driver struct {
	cfg     Config
	limits  limits
	sockets string
	ctx     context.Context
	cancel  context.CancelFunc
	over    chan struct{} // closed when run has ended
	looked  chan struct{} // closed after the first start was tried

	mu      sync.Mutex
	now     *life         // nil if no process is running
	why     string        // why no process is running
	changed chan struct{} // closed when the running process changes
	print   driver.Fingerprint
}

// New starts the plugin and returns at once. Fingerprint reports whether the plugin works.
func New(cfg Config) (*Driver, error) { return open(cfg, defaults) }

func open(cfg Config, limits limits) (*Driver, error) {
	if !filepath.IsAbs(cfg.Path) || !filepath.IsAbs(cfg.Dir) || cfg.Name == "" {
		return nil, errors.New("a plugin needs a name, an absolute path and a folder")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Logger = cfg.Logger.With("plugin", cfg.Name)
	d := &Driver{cfg: cfg, limits: limits, sockets: filepath.Join(cfg.Dir, "run"),
		over: make(chan struct{}), looked: make(chan struct{}), changed: make(chan struct{}), why: "it is being started"}
	if err := sweep(d.sockets); err != nil { // remove the folders that a killed agent left
		return nil, err
	}
	for _, dir := range []string{d.sockets, cfg.data()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	go d.run()
	return d, nil
}

// Close ends the plugin's process. The plugin's runs continue.
func (d *Driver) Close() {
	d.cancel()
	<-d.over
}

// run starts the plugin, and starts it again whenever it ends, until Close.
func (d *Driver) run() {
	defer close(d.over)
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 100*time.Millisecond, 30*time.Second
	retry.Reset()
	first := sync.OnceFunc(func() { close(d.looked) })
	for {
		begun := time.Now()
		l, err := begin(d.ctx, d.cfg, d.sockets, d.limits)
		if err == nil {
			d.cfg.Logger.Info("plugin runs", "path", d.cfg.Path, "pid", l.process.Pid)
			d.set(l, "", d.look(l))
			first()
			err = d.watch(l)
		}
		if d.ctx.Err() != nil {
			d.set(nil, "the agent ends", driver.Fingerprint{Message: "the agent ends"})
			first()
			return
		}
		d.set(nil, err.Error(), driver.Fingerprint{Version: d.latest().Version, Message: clip("it does not run: "+err.Error(), maxMessage)})
		first()
		if time.Since(begun) > d.limits.steady {
			retry.Reset()
		}
		pause := retry.NextBackOff()
		d.cfg.Logger.Error("plugin does not run", "path", d.cfg.Path, "error", err, "again_in", pause)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-d.ctx.Done():
			t.Stop()
		}
	}
}

// watch checks the health of a process until the process has ended or Close is called. It
// kills a process that does not respond.
func (d *Driver) watch(l *life) error {
	tick := time.NewTicker(d.limits.ping)
	defer tick.Stop()
	for missed := 0; ; {
		select {
		case <-l.gone:
			l.close()
			return errors.New(l.ended())
		case <-d.ctx.Done():
			l.finish(d.limits.stop)
			return d.ctx.Err()
		case <-tick.C:
		}
		f := d.look(l)
		if f.Healthy || f.Message != noAnswer {
			missed = 0
		} else if missed++; missed >= maxMissed {
			_ = l.process.Kill()
			<-l.gone
			l.close()
			return fmt.Errorf("it was killed, because it did not respond to %d Fingerprints within %s each", missed, d.limits.quick)
		}
		d.set(l, "", f)
	}
}

// noAnswer is the health message of a plugin that does not respond.
const noAnswer = "it does not respond"

// look asks a process for its fingerprint.
func (d *Driver) look(l *life) driver.Fingerprint {
	ctx, cancel := context.WithTimeout(d.ctx, d.limits.quick)
	defer cancel()
	r, err := l.client.Fingerprint(ctx, &nusav1.FingerprintRequest{})
	if ctx.Err() != nil {
		return driver.Fingerprint{Message: noAnswer}
	}
	if err != nil {
		return driver.Fingerprint{Message: readError(d.cfg.Name, "Fingerprint", err).Error()}
	}
	return checkFingerprint(d.cfg.Name, r, l.lacks)
}

// set records the fingerprint and the running process. If no process is running, it
// records the reason.
func (d *Driver) set(now *life, why string, f driver.Fingerprint) {
	d.mu.Lock()
	if d.now != now || d.why != why {
		d.now, d.why = now, why
		close(d.changed)
		d.changed = make(chan struct{})
	}
	differs := !reflect.DeepEqual(d.print, f)
	d.print = f
	d.mu.Unlock()
	if differs && d.cfg.Changed != nil {
		d.cfg.Changed()
	}
}

func (d *Driver) latest() driver.Fingerprint {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.print
}

// Fingerprint returns the latest fingerprint of the plugin. Only the first call waits,
// until the first start was tried.
func (d *Driver) Fingerprint(ctx context.Context) driver.Fingerprint {
	select {
	case <-d.looked:
	case <-ctx.Done():
		return driver.Fingerprint{Message: "it is being started"}
	}
	return d.latest()
}

// current returns the running process. It always waits until the first start was tried. If
// no process is running after that, it waits for the next process if wait is true, else it
// returns an error.
func (d *Driver) current(ctx context.Context, wait bool) (*life, error) {
	select {
	case <-d.looked:
	case <-ctx.Done():
		return nil, errors.New("it is being started")
	}
	for {
		d.mu.Lock()
		l, why, changed := d.now, d.why, d.changed
		d.mu.Unlock()
		if l != nil {
			select {
			case <-l.gone:
				why = l.ended()
			default:
				return l, nil
			}
		}
		if !wait {
			return nil, errors.New(why)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, errors.New(why)
		case <-d.ctx.Done():
			return nil, errors.New("the agent ends")
		}
	}
}
