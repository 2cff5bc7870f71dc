package incus

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"debug/elf"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lxc/incus/v6/shared/api"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mounts"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/supervise"
)

// Config configures a Driver.
type Config struct {
	// Dir is the folder with a folder for each run. It is required.
	Dir string
	// Address is the address of the daemon: the absolute path of its socket, or https://….
	Address string
	// TLS holds the client's certificate and the trusted authorities for an https address.
	TLS *tls.Config
	// Project is the project of the daemon that the driver uses. "" means the default
	// project.
	Project string
	// Init is the command line of the first process of containers, which is a supervisor.
	// The folder of the run is appended. The executable must be statically linked and
	// readable by every user, because it runs in the containers. Default: this executable
	// with the argument "supervise".
	Init []string
	// AllowPrivileged lets jobs use every key and device of Incus, even if a key or device
	// gives root on the host. Profiles are the profiles that jobs may name, besides the
	// profile default.
	AllowPrivileged bool
	Profiles        []string
}

// Driver runs Incus instances. Make one with New.
type Driver struct {
	cfg    Config
	engine *engine
	// owner is the id of this data directory. The keys of its instances contain the id.
	owner  string
	locks  locks
	mounts *mounts.Folder
	// ending counts the goroutines that delete ended instances. They end with ctx.
	ctx    context.Context
	cancel context.CancelFunc
	ending sync.WaitGroup
	events *events
}

// SocketPath returns the path of the socket of the host's daemon. It uses the same
// environment variables as the tools of Incus.
func SocketPath() string {
	if s := os.Getenv("INCUS_SOCKET"); s != "" {
		return s
	}
	dir := os.Getenv("INCUS_DIR")
	if dir == "" {
		dir = "/var/lib/incus"
	}
	return filepath.Join(dir, "unix.socket")
}

// LoadTLS reads the PEM files of a client of an https daemon. It returns nil if no file is
// named.
func LoadTLS(cert, key, ca string) (*tls.Config, error) {
	if cert == "" && key == "" && ca == "" {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if cert != "" || key != "" {
		if fi, err := os.Stat(key); err == nil && fi.Mode().Perm()&0o007 != 0 {
			return nil, fmt.Errorf("%s: other users of this host can read or write the key (mode %v): chmod o= it", key, fi.Mode().Perm())
		}
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, err
		}
		out.Certificates = []tls.Certificate{pair}
	}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: no certificate in it", ca)
		}
	}
	return out, nil
}

// New returns a driver for runs below cfg.Dir. The daemon may still be down.
func New(cfg Config) (*Driver, error) {
	if len(cfg.Init) == 0 {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		cfg.Init = []string{self, "supervise"}
	}
	e, err := newEngine(cfg)
	if err != nil {
		return nil, err
	}
	owner, err := ownerOf(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("driver incus: %w", err)
	}
	d := &Driver{cfg: cfg, engine: e, owner: owner, locks: locks{held: map[driver.ID]*held{}}, mounts: mounts.NewFolder(cfg.Dir)}
	d.mounts.Sweep(func(id driver.ID) bool { _, err := d.read(id); return err == nil })
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.events = newEvents(d.ctx, e)
	return d, nil
}

// Close ends the driver's goroutines. Running instances continue.
func (d *Driver) Close() {
	d.cancel()
	d.events.wait()
	d.ending.Wait()
	d.engine.close()
	d.mounts.Close()
}

// static returns an error if the executable is not statically linked, because it could then
// not run in every container.
func static(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return fmt.Errorf("%s is not statically linked: build it with CGO_ENABLED=0", path)
	}
	return nil
}

// fingerprintLimit bounds an inspection of the daemon. A daemon that hangs must not delay
// the inspection of other drivers.
const fingerprintLimit = 5 * time.Second

// Fingerprint inspects the daemon. It also deletes instances that an earlier process of the
// agent has left.
func (d *Driver) Fingerprint(ctx context.Context) driver.Fingerprint {
	ctx, cancel := context.WithTimeout(ctx, fingerprintLimit)
	defer cancel()
	if err := static(d.cfg.Init[0]); err != nil {
		return driver.Fingerprint{Message: err.Error()}
	}
	var server api.Server
	if err := d.engine.call(ctx, http.MethodGet, "/1.0", nil, nil, &server); err != nil {
		return driver.Fingerprint{Message: err.Error()}
	}
	f := driver.Fingerprint{Version: server.Environment.ServerVersion}
	switch {
	case server.Auth != "trusted":
		f.Message = "the daemon does not trust this client: add the client's certificate to the daemon"
		return f
	case server.Environment.KernelFeatures["idmapped_mounts"] != "true":
		f.Message = "the kernel has no idmapped mounts, which containers need to use folders of the host: run Linux 5.12 or later"
		return f
	}
	f.Healthy = true
	f.Capabilities = []string{driver.CapCPULimit, driver.CapExec, driver.CapKillSignal, driver.CapMemoryLimit,
		driver.CapRecover, driver.CapSelfFencing, driver.CapSignal, driver.CapStats, driver.CapUpdate}
	var notes []string
	if !strings.Contains(server.Environment.Driver, "qemu") {
		notes = append(notes, "no virtual machines: the daemon runs "+server.Environment.Driver)
	}
	if why := d.mountProblem(); why != "" {
		notes = append(notes, "no volumes, no secrets: "+why)
	} else {
		f.Capabilities = append(f.Capabilities, driver.CapMounts, driver.CapSecrets, driver.CapVolumes)
		if note := mounts.ByPath(); note != "" {
			notes = append(notes, note)
		}
	}
	slices.Sort(f.Capabilities)
	if err := d.sweep(ctx); err != nil {
		notes = append(notes, "left-overs not deleted: "+err.Error())
	}
	f.Message = strings.Join(notes, "; ")
	return f
}

// mountProblem returns why instances cannot see what the agent mounts, or "" if no problem
// is known.
func (d *Driver) mountProblem() string {
	if !strings.HasPrefix(d.cfg.Address, "/") {
		return "" // over HTTPS the daemon's process is unknown
	}
	return d.mounts.Unseen(d.cfg.Address)
}

// Status implements driver.Driver.
func (d *Driver) Status(ctx context.Context, id driver.ID) (driver.Status, error) {
	st, err := d.status(ctx, id)
	if err != nil {
		err = fmt.Errorf("run %s: %w", id, err)
	}
	return st, err
}

func (d *Driver) status(ctx context.Context, id driver.ID) (driver.Status, error) {
	rec, err := d.read(id)
	switch {
	case err != nil:
		return driver.Status{}, err
	case rec.Final != nil:
		return *rec.Final, nil
	case rec.Supervised:
		st, err := supervise.Query(d.box(id))
		return outside(st), err
	case rec.Started.IsZero():
		return driver.Status{}, driver.ErrNotFound
	}
	inst, err := d.engine.instance(ctx, rec.Instance)
	running := driver.Status{State: driver.Running, Started: rec.Started}
	switch {
	case refused(err, http.StatusNotFound):
		return d.finish(id, rec, driver.CauseLost, "the daemon no longer has the instance", -1)
	case err != nil && ctx.Err() != nil:
		return driver.Status{}, err
	case err != nil || inst.StatusCode != api.Stopped:
		// An instance continues without its daemon.
		return running, nil
	}
	return d.finish(id, rec, driver.CauseExited, "", 0)
}

// outside removes the process id from a status, because a process id of a container means
// nothing on the host. It also adds the field of the job file to the message of a failed
// start.
func outside(st driver.Status) driver.Status {
	st.PID = 0
	switch st.Cause {
	case driver.CauseStartFailed:
		for _, b := range supervisorHints {
			if strings.HasPrefix(st.Message, b.words) {
				st.Message = b.field + ": " + st.Message
				break
			}
		}
	case driver.CauseLost:
		st.Message = "the container ended with its supervisor in it; the exit code is unknown"
	}
	return st
}

// Wait implements driver.Driver.
func (d *Driver) Wait(ctx context.Context, id driver.ID) (driver.Status, error) {
	st, err := d.await(ctx, id)
	if err != nil {
		return st, fmt.Errorf("run %s: %w", id, err)
	}
	d.ending.Go(func() { d.deleteEnded(d.ctx, id) })
	return st, nil
}

func (d *Driver) await(ctx context.Context, id driver.ID) (driver.Status, error) {
	rec, err := d.read(id)
	switch {
	case err != nil:
		return driver.Status{}, err
	case rec.Final != nil:
		return *rec.Final, nil
	case rec.Supervised:
		st, err := supervise.Wait(ctx, d.box(id))
		return outside(st), err
	}
	for {
		changed := d.events.next() // get the channel before the status, so that no later change is missed
		st, err := d.status(ctx, id)
		if err != nil || st.State == driver.Ended {
			return st, err
		}
		// A connection may be dead without an error, so the status is read again after some
		// time.
		t := time.NewTimer(rereadEvery)
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil {
			return driver.Status{}, ctx.Err()
		}
	}
}

// rereadEvery is the pause between two reads of the status while no event arrives.
const rereadEvery = 30 * time.Second

// stopDelete bounds how long a stop waits for the deletion of an ended instance.
const stopDelete = 5 * time.Second

// forceAfter is added to the grace. If the supervisor has not stopped the run after that
// time, the driver stops the instance by force.
const forceAfter = 3 * time.Second

// Stop implements driver.Driver.
func (d *Driver) Stop(ctx context.Context, id driver.ID, grace time.Duration) error {
	if rec, err := d.read(id); err == nil && rec.Supervised && rec.Final == nil {
		// If the run has not begun, Forbid prevents its begin, even if the daemon starts
		// the container later. Then a Start that is still running ends, too.
		if _, err := supervise.Forbid(ctx, d.box(id), "stopped before it began"); err != nil {
			return fmt.Errorf("stop %s: %w", id, err)
		}
	}
	unlock, err := d.locks.take(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := d.read(id)
	if errors.Is(err, driver.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop %s: %w", id, err)
	}
	if rec.Final == nil {
		if rec.Supervised {
			err = d.stopSupervised(ctx, id, rec, grace)
		} else {
			err = d.stopPlain(ctx, id, rec, grace)
		}
		if err != nil {
			return fmt.Errorf("stop %s: %w", id, err)
		}
	}
	// No process of the run is left. Its ports and its disk space become free when the
	// daemon deletes the instance.
	ctx, cancel := context.WithTimeout(ctx, stopDelete)
	defer cancel()
	if d.delete(ctx, id, rec) != nil {
		d.ending.Go(func() { d.deleteEnded(d.ctx, id) })
	}
	return nil
}

func (d *Driver) stopSupervised(ctx context.Context, id driver.ID, rec record, grace time.Duration) error {
	asked, cancel := context.WithTimeout(ctx, max(0, grace)+forceAfter)
	defer cancel()
	_, err := supervise.Stop(asked, d.box(id), grace)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// The supervisor does not respond, so the instance is stopped by force.
	if err := d.delete(ctx, id, rec); err != nil {
		return err
	}
	_, err = d.finish(id, rec, driver.CauseStopped, "stopped by force: "+err.Error(), 137)
	return err
}

func (d *Driver) stopPlain(ctx context.Context, id driver.ID, rec record, grace time.Duration) error {
	if grace >= time.Second {
		// If the daemon refuses or does not stop the instance in time, delete stops it by
		// force.
		_ = d.engine.setState(ctx, rec.Instance, api.InstanceStatePut{Action: "stop", Timeout: int(grace / time.Second)})
	}
	if err := d.delete(ctx, id, rec); err != nil {
		return err
	}
	_, err := d.finish(id, rec, driver.CauseStopped, "stopped by the agent", 0)
	return err
}

// Renew implements driver.Driver.
func (d *Driver) Renew(ctx context.Context, id driver.ID, l lease.Deadline) error {
	rec, err := d.read(id)
	if err == nil && !rec.Supervised {
		err = fmt.Errorf("%w: without config.command no lease can bind the run", driver.ErrInvalid)
	}
	if err == nil && rec.Final == nil {
		err = supervise.Renew(ctx, d.box(id), l)
	}
	if err != nil {
		return fmt.Errorf("renew %s: %w", id, err)
	}
	return nil
}

// Logs implements driver.Driver.
func (d *Driver) Logs(ctx context.Context, id driver.ID, o driver.LogOptions, emit func(driver.LogChunk) error) error {
	st, err := d.Status(ctx, id)
	if err != nil {
		return err
	}
	rec, err := d.read(id)
	if err != nil || !rec.Supervised {
		return err // the output of an image's own init is not retained
	}
	if st.State == driver.Ended {
		o.Follow = false
	}
	return supervise.Logs(ctx, d.box(id), o, emit)
}

// Size implements driver.Driver.
func (d *Driver) Size(_ context.Context, id driver.ID) (int64, error) {
	return supervise.LogSize(d.box(id))
}

// Remove implements driver.Driver.
func (d *Driver) Remove(ctx context.Context, id driver.ID) error {
	unlock, err := d.locks.take(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := d.read(id)
	if err == nil {
		if st, err := d.status(ctx, id); err == nil && st.State != driver.Ended {
			return fmt.Errorf("remove %s: the run still runs", id)
		}
		// If the daemon does not respond, a later fingerprint deletes the instance.
		short, cancel := context.WithTimeout(ctx, stopDelete)
		_ = d.delete(short, id, rec)
		cancel()
	}
	if err := errors.Join(d.mounts.Drop(id), os.RemoveAll(d.runDir(id))); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(d.runDir(id))) // this succeeds when the last run of the allocation is removed
	return nil
}
