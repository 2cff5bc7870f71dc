//go:build integration

package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"
)

// engine is a Docker engine of the tests' own: its folders, its socket and its
// network namespace, so that it meets no other engine of the host.
type engine struct {
	dir   string
	flags []string
	net   *os.File
	cmd   *exec.Cmd
	done  chan struct{}
}

// newEngine starts an engine with an image "box": busybox. The test is skipped
// where none is installed.
func newEngine(t *testing.T, flags ...string) *engine {
	t.Helper()
	for _, need := range []string{"dockerd", "busybox"} {
		if _, err := exec.LookPath(need); err != nil || os.Geteuid() != 0 {
			t.Skip("skipped: no docker: dockerd and busybox-static must be installed, and this run as root")
		}
	}
	dir, err := os.MkdirTemp("", "nusa-docker-") // a socket's path is short
	if err = errors.Join(err, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)); err != nil {
		t.Fatal(err)
	}
	e := &engine{dir: dir, flags: flags}
	t.Cleanup(func() { e.destroy(t) })
	if e.net, err = newNetwork(); err != nil {
		t.Fatal(err)
	}
	e.start(t)
	e.load(t, "box:1", runtime.GOARCH, map[string]any{"Cmd": []string{"/bin/sleep", "3600"}})
	return e
}

func (e *engine) host() string { return "unix://" + filepath.Join(e.dir, "sock") }

// start the engine and wait until it answers.
func (e *engine) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(e.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	e.cmd = exec.Command("dockerd", append([]string{"--data-root", filepath.Join(e.dir, "data"), "--exec-root", filepath.Join(e.dir, "exec"),
		"--pidfile", filepath.Join(e.dir, "pid"), "--host", e.host(), "--storage-driver", "vfs"}, e.flags...)...)
	e.cmd.Stdout, e.cmd.Stderr = log, log
	if err := inNetwork(e.net, e.cmd.Start); err != nil {
		t.Fatal(err)
	}
	e.done = make(chan struct{})
	go func() {
		defer close(e.done)
		_ = e.cmd.Wait()
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cli := e.client(t)
	for {
		if _, err := cli.Info(ctx, client.InfoOptions{}); err == nil {
			return
		}
		select {
		case <-e.done:
			e.fail(t, "the engine ended")
		default:
		}
		if pause(ctx, again/4) != nil {
			e.fail(t, "the engine does not answer")
		}
	}
}

func (e *engine) fail(t *testing.T, what string) {
	t.Helper()
	data, _ := os.ReadFile(filepath.Join(e.dir, "log"))
	t.Fatalf("%s:\n%s", what, data[max(0, len(data)-3000):])
}

// stop the engine with a signal.
func (e *engine) stop(t *testing.T, sig os.Signal) {
	t.Helper()
	containerd, _ := os.ReadFile(filepath.Join(e.dir, "exec", "containerd", "containerd.pid"))
	_ = e.cmd.Process.Signal(sig)
	select {
	case <-e.done:
	case <-time.After(30 * time.Second):
		e.fail(t, "the engine does not end")
	}
	// Its helper dies with it, but the next engine takes a zombie for a live one.
	if pid, err := strconv.Atoi(string(containerd)); err == nil {
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}
}

func (e *engine) client(t *testing.T) *client.Client {
	t.Helper()
	cli, err := client.New(client.WithHost(e.host()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cli.Close() })
	return cli
}

// destroy the engine with all its containers.
func (e *engine) destroy(t *testing.T) {
	if e.cmd != nil && e.cmd.Process != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if cli, err := client.New(client.WithHost(e.host())); err == nil {
			list, _ := cli.ContainerList(ctx, client.ContainerListOptions{All: true})
			for _, c := range list.Items {
				_, _ = cli.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true})
			}
			_ = cli.Close()
		}
		e.stop(t, unix.SIGTERM)
	}
	if e.net != nil {
		e.net.Close()
	}
	unmountBelow(e.dir)
	if err := os.RemoveAll(e.dir); err != nil {
		t.Errorf("the engine's folder: %v", err)
	}
}

// unmountBelow undoes what an engine that was killed left mounted.
func unmountBelow(dir string) {
	data, _ := os.ReadFile("/proc/self/mountinfo")
	lines := strings.Split(string(data), "\n")
	for _, line := range slices.Backward(lines) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			_ = unix.Unmount(f[4], unix.MNT_DETACH)
		}
	}
}

// load makes an image of busybox. config is as in an image's configuration.
func (e *engine) load(t *testing.T, name, arch string, config map[string]any) {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	layer := archive(t, func(w *tar.Writer) error {
		var errs []error
		for _, dir := range []string{"bin", "tmp", "proc"} {
			errs = append(errs, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o777}))
		}
		for _, link := range []string{"sh", "cat", "sleep", "stty", "wget", "httpd", "id", "dd", "nc"} {
			errs = append(errs, w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + link, Linkname: "busybox", Mode: 0o777}))
		}
		return errors.Join(append(errs, file(w, "bin/busybox", program))...)
	})
	if _, ok := config["Env"]; !ok {
		config["Env"] = []string{"PATH=/bin"}
	}
	conf, err := json.Marshal(map[string]any{"architecture": arch, "os": "linux", "config": config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sum(layer))}}})
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		t.Fatal(err)
	}
	image := archive(t, func(w *tar.Writer) error {
		return errors.Join(file(w, "manifest.json", manifest), file(w, "config.json", conf), file(w, "layer.tar", layer))
	})
	res, err := e.client(t).ImageLoad(t.Context(), bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Close()
	if out, err := io.ReadAll(res); err != nil || !bytes.Contains(out, []byte("Loaded")) {
		t.Fatalf("image not loaded: %s, %v", out, err)
	}
}

func archive(t *testing.T, write func(*tar.Writer) error) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(write(w), w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func sum(data []byte) [32]byte { return sha256.Sum256(data) }

func file(w *tar.Writer, name string, data []byte) error {
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(data))})
	_, err2 := w.Write(data)
	return errors.Join(err, err2)
}

// newNetwork makes a network namespace with a loopback.
func newNetwork() (*os.File, error) {
	type made struct {
		f   *os.File
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
		f, err2 := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		ch <- made{f, errors.Join(err, err2)}
	}()
	m := <-ch
	return m.f, m.err
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

// inNetwork calls f in a network namespace.
func inNetwork(ns *os.File, f func() error) error {
	ch := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever
		err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		ch <- err
	}()
	return <-ch
}
