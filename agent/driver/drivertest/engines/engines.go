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

// ErrMissing: the engine's programs are not installed, or this user is not root. The text
// of the error is the reason of a skipped test.
var ErrMissing = errors.New("skipped")

// readyLimit bounds the start or the end of an engine.
const readyLimit = time.Minute

// Network is a network namespace with its own loopback interface.
type Network struct{ ns *os.File }

// NewNetwork makes a network namespace. The namespace exists until Close was called and its
// last process has ended.
func NewNetwork() (*Network, error) {
	type made struct {
		ns  *os.File
		err error
	}
	ch := make(chan made)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
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

// Do calls f on a thread that is in the namespace. The sockets and processes that f makes
// are in the namespace, unless f makes them in another goroutine. For a nil Network, Do
// calls f in the host's network.
func (n *Network) Do(f func() error) error {
	if n == nil {
		return f()
	}
	ch := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		err := unix.Setns(int(n.ns.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		ch <- err
	}()
	return <-ch
}

// Close closes this process' handle of the namespace.
func (n *Network) Close() error { return n.ns.Close() }

// busybox returns the executable that is the only program of the images.
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

// applets are the commands of busybox that the images have.
var applets = strings.Fields("sh sleep cat printf true ls id grep wget httpd yes head poweroff kill stty dd nc wc touch test stat")

// look returns ErrMissing if an engine cannot be started on this host.
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

// unmountBelow removes the mounts that a killed engine left.
func unmountBelow(dir string) {
	data, _ := os.ReadFile("/proc/self/mountinfo")
	for _, line := range slices.Backward(strings.Split(string(data), "\n")) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			_ = unix.Unmount(f[4], unix.MNT_DETACH)
		}
	}
}

// log opens an engine's log for appending.
func log(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// end returns the last 3,000 bytes of a log, for messages.
func end(path string) string {
	data, _ := os.ReadFile(path)
	return string(data[max(0, len(data)-3000):])
}
