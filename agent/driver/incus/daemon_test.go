//go:build integration

package incus

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lxc/incus/v6/shared/api"
	"golang.org/x/sys/unix"
)

// daemon is an incusd of the test's own, in a folder of its own, with one image
// "bb" that holds nothing but busybox.
type daemon struct {
	dir    string
	binary string
	cmd    *exec.Cmd
	engine *engine
}

// binary of incusd; "" = not installed.
func incusd() string {
	for _, p := range []string{"incusd", "/usr/libexec/incus/incusd", "/opt/incus/bin/incusd"} {
		if path, err := exec.LookPath(p); err == nil {
			return path
		}
	}
	return ""
}

// startDaemon starts an incusd, or skips the test where there is none.
func startDaemon() (*daemon, error) {
	dir, err := os.MkdirTemp("", "nusa-incus-") // short: a socket's path has 108 bytes
	if err != nil {
		return nil, err
	}
	d := &daemon{dir: dir, binary: incusd()}
	if err := os.MkdirAll("/var/lib/lxcfs", 0o755); err != nil {
		return nil, err
	}
	if d.engine, err = newEngine(Config{Address: d.socket()}); err != nil {
		return nil, err
	}
	if err := d.start(); err != nil {
		return d, err
	}
	return d, d.furnish()
}

func (d *daemon) socket() string { return filepath.Join(d.dir, "unix.socket") }

func (d *daemon) start() error {
	log, err := os.OpenFile(filepath.Join(d.dir, "incusd.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	d.cmd = exec.Command(d.binary)
	d.cmd.Env = append(os.Environ(), "INCUS_DIR="+d.dir, "PATH="+filepath.Dir(d.binary)+":"+os.Getenv("PATH"))
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := d.cmd.Start(); err != nil {
		return err
	}
	ready := exec.Command(d.binary, "waitready", "--timeout=30")
	ready.Env = d.cmd.Env
	if out, err := ready.CombinedOutput(); err != nil {
		return fmt.Errorf("incusd is not ready: %w: %s", err, out)
	}
	return nil
}

// kill ends the daemon as a crash would; containers go on.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	_, _ = d.cmd.Process.Wait()
}

// furnish makes the pool, the default profile and the image.
func (d *daemon) furnish() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := d.engine.call(ctx, http.MethodPost, "/1.0/storage-pools", nil, api.StoragePoolsPost{Name: "default", Driver: "dir"}, nil); err != nil {
		return err
	}
	profile := api.ProfilePut{Devices: map[string]map[string]string{"root": {"type": "disk", "path": "/", "pool": "default"}}}
	if err := d.engine.call(ctx, http.MethodPut, "/1.0/profiles/default", nil, profile, nil); err != nil {
		return err
	}
	return d.addImage(ctx, "bb", "x86_64")
}

// addImage uploads an image with busybox under an alias.
func (d *daemon) addImage(ctx context.Context, alias, arch string) error {
	tarball, err := image(arch)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.engine.url("/1.0/images", nil), bytes.NewReader(tarball))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	res, err := d.engine.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var a answer
	if err := json.NewDecoder(res.Body).Decode(&a); err != nil {
		return err
	}
	if err := d.engine.await(ctx, a.Operation); err != nil {
		return err
	}
	var all []api.Image
	if err := d.engine.call(ctx, http.MethodGet, "/1.0/images", url.Values{"recursion": {"1"}}, nil, &all); err != nil {
		return err
	}
	for _, i := range all {
		if i.Properties["name"] == arch {
			post := api.ImageAliasesPost{ImageAliasesEntry: api.ImageAliasesEntry{Name: alias, ImageAliasesEntryPut: api.ImageAliasesEntryPut{Target: i.Fingerprint}}}
			return d.engine.call(ctx, http.MethodPost, "/1.0/images/aliases", nil, post, nil)
		}
	}
	return errors.New("the image that was added is not there")
}

// image is a root file system of busybox alone.
func image(arch string) ([]byte, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	if f, err := elf.Open(path); err != nil {
		return nil, err
	} else if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return nil, fmt.Errorf("%s is not statically linked: install busybox-static", path)
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	zip, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	w := tar.NewWriter(zip)
	file := func(name string, mode int64, data string) {
		err = errors.Join(err, w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(data))}))
		_, e := w.Write([]byte(data))
		err = errors.Join(err, e)
	}
	file("metadata.yaml", 0o644, "architecture: "+arch+"\ncreation_date: 1700000000\nproperties: {name: "+arch+"}\n")
	for _, dir := range strings.Fields("bin sbin etc dev proc sys tmp run root var") {
		err = errors.Join(err, w.WriteHeader(&tar.Header{Name: "rootfs/" + dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}))
	}
	file("rootfs/bin/busybox", 0o755, string(busybox))
	for _, applet := range strings.Fields("sh sleep cat printf true ls id grep wget httpd yes head poweroff kill stty") {
		err = errors.Join(err, w.WriteHeader(&tar.Header{Name: "rootfs/bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox"}))
	}
	// Two init programs of its own: one that stays, and one that ends.
	file("rootfs/sbin/init", 0o755, "#!/bin/sh\ntrap 'exit 0' PWR TERM\n[ -e /etc/short ] && exit 0\nwhile :; do sleep 0.1; done\n")
	file("rootfs/etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\nguest:x:1000:1000:guest:/:/bin/sh\n")
	file("rootfs/etc/group", 0o644, "root:x:0:\nguest:x:1000:\n")
	err = errors.Join(err, w.Close(), zip.Close())
	return out.Bytes(), err
}

// stop ends the daemon, everything of it, and its folder.
func (d *daemon) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var all []api.Instance
	if err := d.engine.call(ctx, http.MethodGet, "/1.0/instances", url.Values{"recursion": {"1"}}, nil, &all); err == nil {
		for _, i := range all {
			_ = d.engine.setState(ctx, i.Name, api.InstanceStatePut{Action: "stop", Force: true, Timeout: -1})
		}
	}
	d.engine.close()
	d.kill()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], d.dir+"/") {
			_ = unix.Unmount(f[4], unix.MNT_DETACH)
		}
	}
	return os.RemoveAll(d.dir)
}

// names of the instances that the daemon has.
func (d *daemon) names(t *testing.T) []string {
	t.Helper()
	var all []api.Instance
	if err := d.engine.call(t.Context(), http.MethodGet, "/1.0/instances", url.Values{"recursion": {"1"}}, nil, &all); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, i := range all {
		out = append(out, i.Name)
	}
	return out
}
