package engines

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/lxc/incus/v6/shared/api"
	"golang.org/x/sys/unix"
)

// Incus is an Incus daemon for one test. It has a storage pool "default", a default profile
// that contains only a root disk, and an image "bb" of busybox.
type Incus struct {
	Dir string
	// Process is the process of the daemon. Tests send it signals.
	Process *os.Process

	binary string
	net    *Network
	http   http.Client
}

// incusd returns the path of the daemon's executable, or "" if the daemon is not installed.
func incusd() string {
	for _, p := range []string{"incusd", "/usr/libexec/incus/incusd", "/opt/incus/bin/incusd"} {
		if path, err := exec.LookPath(p); err == nil {
			return path
		}
	}
	return ""
}

// NewIncus starts a daemon in a network namespace, or in the host's network if network is
// nil. Call Destroy afterwards, also after an error that is not ErrMissing.
func NewIncus(network *Network) (*Incus, error) {
	i := &Incus{binary: incusd(), net: network}
	if err := look("incus", i.binary != ""); err != nil {
		return i, err
	}
	var err error
	if i.Dir, err = os.MkdirTemp("", "nusa-incus-"); err != nil { // the path of a socket may have only 108 bytes
		return i, err
	}
	if err := os.MkdirAll("/var/lib/lxcfs", 0o755); err != nil {
		return i, err
	}
	// The daemon accepts no connection while another one is idle, so connections are not
	// reused.
	i.http.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", i.Socket())
	}}
	if err := i.Start(); err != nil {
		return i, err
	}
	return i, i.furnish()
}

// Socket returns the path of the daemon's socket.
func (i *Incus) Socket() string { return filepath.Join(i.Dir, "unix.socket") }

// Start starts the daemon, for the first time or again, and waits until the daemon is
// ready.
func (i *Incus) Start() error {
	out, err := log(filepath.Join(i.Dir, "incusd.log"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(i.binary)
	cmd.Env = append(os.Environ(), "INCUS_DIR="+i.Dir, "PATH="+filepath.Dir(i.binary)+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := i.net.Do(cmd.Start); err != nil {
		return err
	}
	i.Process = cmd.Process
	ready := exec.Command(i.binary, "waitready", fmt.Sprintf("--timeout=%d", readyLimit/time.Second))
	ready.Env = cmd.Env
	if text, err := ready.CombinedOutput(); err != nil {
		return fmt.Errorf("incusd is not ready: %w: %s\n%s", err, text, end(out.Name()))
	}
	return nil
}

// Kill ends the daemon like a crash. Containers continue.
func (i *Incus) Kill() {
	_ = i.Process.Kill()
	_, _ = i.Process.Wait()
}

// Stop ends the daemon regularly. Containers continue.
func (i *Incus) Stop() {
	_ = i.Process.Signal(unix.SIGTERM)
	_, _ = i.Process.Wait()
}

// Ask makes a request to the daemon. If the request begins an operation, Ask waits for the
// end of the operation. out may be nil.
func (i *Incus) Ask(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	contentType := "application/json"
	switch v := in.(type) {
	case nil:
	case io.Reader:
		body, contentType = v, "application/octet-stream"
	default:
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://incus"+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", contentType)
	res, err := i.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var a struct {
		api.Response
		Metadata json.RawMessage `json:"metadata"`
	}
	if err := json.NewDecoder(res.Body).Decode(&a); err != nil {
		return err
	}
	switch {
	case a.Type == api.ErrorResponse:
		return fmt.Errorf("%s %s: %s", method, path, a.Error)
	case a.Type == api.AsyncResponse:
		var op api.Operation
		if err := i.Ask(ctx, http.MethodGet, a.Operation+"/wait", nil, &op); err != nil {
			return err
		}
		if op.StatusCode != api.Success {
			return fmt.Errorf("%s %s: %s", method, path, op.Err)
		}
		return nil
	case out == nil:
		return nil
	}
	return json.Unmarshal(a.Metadata, out)
}

// furnish adds the pool, the default profile and the image to a new daemon.
func (i *Incus) furnish() error {
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	if err := i.Ask(ctx, http.MethodPost, "/1.0/storage-pools", api.StoragePoolsPost{Name: "default", Driver: "dir"}, nil); err != nil {
		return err
	}
	profile := api.ProfilePut{Devices: map[string]map[string]string{"root": {"type": "disk", "path": "/", "pool": "default"}}}
	if err := i.Ask(ctx, http.MethodPut, "/1.0/profiles/default", profile, nil); err != nil {
		return err
	}
	return i.AddImage(ctx, "bb", "x86_64")
}

// AddImage uploads an image of busybox for an architecture under an alias.
func (i *Incus) AddImage(ctx context.Context, alias, arch string) error {
	tarball, err := incusImage(alias, arch)
	if err != nil {
		return err
	}
	if err := i.Ask(ctx, http.MethodPost, "/1.0/images", bytes.NewReader(tarball), nil); err != nil {
		return err
	}
	var all []api.Image
	if err := i.Ask(ctx, http.MethodGet, "/1.0/images?recursion=1", nil, &all); err != nil {
		return err
	}
	for _, image := range all {
		if image.Properties["name"] == alias {
			post := api.ImageAliasesPost{ImageAliasesEntry: api.ImageAliasesEntry{Name: alias, ImageAliasesEntryPut: api.ImageAliasesEntryPut{Target: image.Fingerprint}}}
			return i.Ask(ctx, http.MethodPost, "/1.0/images/aliases", post, nil)
		}
	}
	return errors.New("the daemon does not list the image that was added")
}

// incusImage returns an image whose root file system contains only busybox and a small
// init.
func incusImage(name, arch string) ([]byte, error) {
	program, err := busybox()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	zip, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	w := tar.NewWriter(zip)
	errs := []error{
		file(w, "metadata.yaml", 0o644, []byte("architecture: "+arch+"\ncreation_date: 1700000000\nproperties: {name: "+name+"}\n")),
	}
	for _, dir := range strings.Fields("bin sbin etc dev proc sys tmp run root var") {
		errs = append(errs, w.WriteHeader(&tar.Header{Name: "rootfs/" + dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}))
	}
	errs = append(errs, file(w, "rootfs/bin/busybox", 0o755, program))
	for _, applet := range applets {
		errs = append(errs, w.WriteHeader(&tar.Header{Name: "rootfs/bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox"}))
	}
	errs = append(errs,
		file(w, "rootfs/sbin/init", 0o755, []byte("#!/bin/sh\ntrap 'exit 0' PWR TERM\nwhile :; do sleep 0.1; done\n")),
		file(w, "rootfs/etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nguest:x:1000:1000:guest:/:/bin/sh\n")),
		file(w, "rootfs/etc/group", 0o644, []byte("root:x:0:\nguest:x:1000:\n")),
		w.Close(), zip.Close())
	return out.Bytes(), errors.Join(errs...)
}

func file(w *tar.Writer, name string, mode int64, data []byte) error {
	err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(data))})
	_, err2 := w.Write(data)
	return errors.Join(err, err2)
}

// Instances returns the daemon's instances.
func (i *Incus) Instances(ctx context.Context) ([]api.Instance, error) {
	var all []api.Instance
	return all, i.Ask(ctx, http.MethodGet, "/1.0/instances?recursion=1", nil, &all)
}

// Destroy ends the daemon and removes its instances and its folder.
func (i *Incus) Destroy() error {
	if i.Dir == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	if i.Process != nil {
		if all, err := i.Instances(ctx); err == nil {
			for _, inst := range all {
				_ = i.Ask(ctx, http.MethodPut, "/1.0/instances/"+inst.Name+"/state", api.InstanceStatePut{Action: "stop", Force: true, Timeout: -1}, nil)
			}
		}
		i.http.CloseIdleConnections()
		i.Kill()
	}
	unmountBelow(i.Dir)
	return os.RemoveAll(i.Dir)
}
