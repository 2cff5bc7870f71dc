package supervise

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// readyFD is the descriptor of the pipe on which the supervisor reports the result of the
// start.
const readyFD = 3

// Main runs a supervisor and returns the exit code of the process. On a host it takes no
// arguments. It waits, perhaps for a long time, until standard input delivers the folder of
// the run as one line. If the input ends without a line, Main returns. As the first process
// of a container, Main takes the folder as its argument.
func Main(args []string) int {
	if len(args) == 1 && os.Getpid() == 1 {
		return inside(args[0])
	}
	// The kernel kills the command when the thread that started it ends, so that thread
	// must live as long as the process.
	runtime.LockOSThread()
	ready := os.NewFile(readyFD, "ready")
	if _, err := ready.Stat(); err != nil || len(args) != 0 {
		fmt.Fprintln(os.Stderr, "nusa supervise: is started by the agent, never by hand")
		return 2
	}
	unix.CloseOnExec(readyFD)
	line, err := bufio.NewReader(io.LimitReader(os.Stdin, unix.PathMax+1)).ReadString('\n')
	if err != nil {
		return 0
	}
	dir := strings.TrimSuffix(line, "\n")
	if err := errors.Join(os.Stdin.Close(), logTo(dir)); err != nil {
		answer(ready, reply{Error: err.Error()})
		return 1
	}
	if err := run(dir, ready); err != nil {
		fmt.Fprintf(os.Stderr, "nusa supervise: %s: %v\n", dir, err)
		answer(ready, reply{Error: err.Error()})
		return 1
	}
	return 0
}

// inside supervises the run in dir as the first process of a container. It reports the
// start only by the record in dir.
func inside(dir string) int {
	runtime.LockOSThread()
	err := logTo(dir)
	if err == nil {
		// An image's own init would bring up the loopback interface. An error is ignored:
		// then the interface is already up, or the network is that of the host.
		_ = loopbackUp()
		err = run(dir, nil)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "nusa supervise: %s: %v\n", dir, err)
		return 1
	}
	return 0
}

// loopbackUp brings the loopback interface up. Then processes of a container can reach each
// other, and the proxies of its ports can reach the processes.
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
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// logTo redirects this process' standard output and error to a file of the run, so that the
// message of a crash is not lost.
func logTo(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return errors.Join(unix.Dup3(int(f.Fd()), 1, 0), unix.Dup3(int(f.Fd()), 2, 0))
}

// answer writes the one line that the driver waits for. It ignores an error, because the
// agent may be dead.
func answer(ready *os.File, r reply) {
	if ready == nil {
		return
	}
	line, err := json.Marshal(r)
	if err == nil {
		_, _ = ready.Write(append(line, '\n'))
	}
	_ = ready.Close()
}

// run supervises the run in dir from start to end. It returns an error only if nothing was
// started.
func run(dir string, ready *os.File) error {
	// From here on paths are relative, because the path of a socket may have only 108
	// bytes.
	if err := os.Chdir(dir); err != nil {
		return err
	}
	// The lock shows that the run has a supervisor. The record shows that the run was
	// begun. Together they ensure that a run starts at most once.
	lock, err := takeLock(".")
	if err != nil {
		return err
	}
	defer lock.Close()
	if _, err := readRecord("."); !missing(err) {
		answer(ready, reply{})
		return err
	}
	spec, err := readSpec(".")
	if err != nil {
		return err
	}
	sock, err := listen()
	if err != nil {
		return err
	}
	defer sock.Close()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the reaper of orphans: %w", err)
	}
	self, err := readStat(os.Getpid())
	if err != nil {
		return err
	}
	rec := record{Session: self.pid, SessionTicks: self.ticks, Boot: BootID(), Status: driver.Status{State: driver.Starting, Started: time.Now()}}
	if err := writeRecord(".", rec); err != nil {
		return err
	}
	s := newSupervisor(spec, rec)
	if err := s.start(); err != nil {
		rec.Status = driver.Status{State: driver.Ended, Started: rec.Started, Finished: time.Now(), ExitCode: 127, Cause: driver.CauseStartFailed, Message: err.Error()}
		rec.Final = final(err)
		if errors.Is(err, errLate) {
			rec.Cause = driver.CauseLateStart
		}
		if err := writeRecord(".", rec); err != nil {
			return err
		}
		answer(ready, reply{Status: rec.Status})
		return nil
	}
	answer(ready, reply{Status: s.rec.Status})
	return s.supervise(sock)
}

// ErrSupervised: the run already has a supervisor.
var ErrSupervised = errors.New("the run already has a supervisor")

// takeLock locks the lock file of a run. The lock lasts until the file is closed or the
// process ends.
func takeLock(dir string) (*os.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := openFile(root, lockFile, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrSupervised
		}
		return nil, err
	}
	return f, nil
}
