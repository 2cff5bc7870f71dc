// Package engines starts real Incus daemons and Docker engines for tests, each
// in folders, and if wanted in a network namespace, of its own, so that they
// meet no other of the host and several stand for several nodes.
package engines

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrMissing: what an engine needs is not installed here, or this is not root.
// Its text is what a skipped test says.
var ErrMissing = errors.New("skipped")

// readyLimit is how long an engine may take until it answers.
const readyLimit = time.Minute

// Network is a network namespace with a loopback of its own.
type Network struct{ ns *os.File }

// NewNetwork makes one; it goes with the last process in it and Close.
func NewNetwork() (*Network, error) {
	type made struct {
		ns  *os.File
		err error
	}
	ch := make(chan made)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			ch <- made{err: err}
			return
		}
		err := loopbackUp()
		ns, err2 := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		ch <- made{ns, errors.Join(err, err2)}
	}()
	m := <-ch
	if m.err != nil {
		return nil, fmt.Errorf("network namespace: %w", m.err)
	}
	return &Network{ns: m.ns}, nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// Do calls f with its thread in the namespace; sockets and processes that f
// makes itself, in no further goroutine, are there. A nil Network is the
// host's.
func (n *Network) Do(f func() error) error {
	if n == nil {
		return f()
	}
	ch := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever
		err := unix.Setns(int(n.ns.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		ch <- err
	}()
	return <-ch
}

// Close lets go of it.
func (n *Network) Close() error { return n.ns.Close() }

// busybox is the program that the images are made of.
func busybox() ([]byte, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return nil, fmt.Errorf("%s is not statically linked: install busybox-static", path)
	}
	return data, nil
}

// applets of busybox in the images.
var applets = strings.Fields("sh sleep cat printf true ls id grep wget httpd yes head poweroff kill stty dd nc wc touch test stat")

// look says why an engine cannot be started here: it says so with ErrMissing.
func look(engine string, found bool) error {
	_, err := busybox()
	if !found || err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("%w: no %s (as root, with it and busybox-static installed)", ErrMissing, engine)
	}
	network, err := NewNetwork()
	if err != nil {
		return fmt.Errorf("%w: no %s (%w)", ErrMissing, engine, err)
	}
	return network.Close()
}

// unmountBelow undoes what an engine that was killed left mounted.
func unmountBelow(dir string) {
	data, _ := os.ReadFile("/proc/self/mountinfo")
	for _, line := range slices.Backward(strings.Split(string(data), "\n")) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			_ = unix.Unmount(f[4], unix.MNT_DETACH)
		}
	}
}

// log opens an engine's log to write at its end.
func log(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// end of a log, for messages.
func end(path string) string {
	data, _ := os.ReadFile(path)
	return string(data[max(0, len(data)-3000):])
}
