package engines

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"
)

// Docker is a Docker engine for one test. It has an image "box:1" of busybox.
type Docker struct {
	Dir string
	Net *Network
	// Process is the process of the engine. Tests send it signals.
	Process *os.Process

	flags []string
	done  chan struct{}
}

// NewDocker starts an engine in a network namespace, with flags of dockerd. Call
// Destroy afterwards, also after an error that is not ErrMissing.
func NewDocker(network *Network, flags ...string) (*Docker, error) {
	d := &Docker{Net: network, flags: flags}
	_, err := exec.LookPath("dockerd")
	if err := look("docker", err == nil); err != nil {
		return d, err
	}
	if d.Dir, err = os.MkdirTemp("", "nusa-docker-"); err != nil { // the path of a socket must be short
		return d, err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return d, err
	}
	if err := d.Start(); err != nil {
		return d, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	return d, d.Load(ctx, "box:1", runtime.GOARCH, map[string]any{"Cmd": []string{"/bin/sleep", "3600"}})
}

// Host returns the engine's address.
func (d *Docker) Host() string { return "unix://" + filepath.Join(d.Dir, "sock") }

// Start starts the engine, for the first time or again, and waits until the engine
// responds.
func (d *Docker) Start() error {
	out, err := log(filepath.Join(d.Dir, "log"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command("dockerd", append([]string{"--data-root", filepath.Join(d.Dir, "data"), "--exec-root", filepath.Join(d.Dir, "exec"),
		"--pidfile", filepath.Join(d.Dir, "pid"), "--host", d.Host(), "--storage-driver", "vfs"}, d.flags...)...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := d.Net.Do(cmd.Start); err != nil {
		return err
	}
	d.Process = cmd.Process
	done := make(chan struct{})
	d.done = done
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := d.ask(func(cli *client.Client) error { _, err := cli.Info(ctx, client.InfoOptions{}); return err })
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-done:
			return fmt.Errorf("dockerd ended:\n%s", end(out.Name()))
		case <-ctx.Done():
			return fmt.Errorf("dockerd does not respond: %w\n%s", err, end(out.Name()))
		}
	}
}

// ask calls the engine over a new connection.
func (d *Docker) ask(what func(*client.Client) error) error {
	cli, err := client.New(client.WithHost(d.Host()))
	if err != nil {
		return err
	}
	return errors.Join(what(cli), cli.Close())
}

// Stop stops the engine with a signal and waits for its end.
func (d *Docker) Stop(sig os.Signal) error {
	containerd, _ := os.ReadFile(filepath.Join(d.Dir, "exec", "containerd", "containerd.pid"))
	_ = d.Process.Signal(sig)
	select {
	case <-d.done:
	case <-time.After(readyLimit):
		return fmt.Errorf("dockerd does not end:\n%s", end(filepath.Join(d.Dir, "log")))
	}
	// The engine's helper containerd dies with the engine. It must be reaped, because the
	// next engine would take a zombie for a running helper.
	if pid, err := strconv.Atoi(string(containerd)); err == nil {
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}
	return nil
}

// Destroy removes the engine with all its containers and its folder.
func (d *Docker) Destroy() error {
	var errs []error
	if d.Process != nil {
		ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
		defer cancel()
		_ = d.ask(func(cli *client.Client) error {
			list, err := cli.ContainerList(ctx, client.ContainerListOptions{All: true})
			for _, c := range list.Items {
				_, _ = cli.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true})
			}
			return err
		})
		errs = append(errs, d.Stop(unix.SIGTERM))
	}
	if d.Dir == "" {
		return nil
	}
	unmountBelow(d.Dir)
	return errors.Join(append(errs, os.RemoveAll(d.Dir))...)
}

// Load makes an image that contains only busybox. config is in the format of an image's
// configuration.
func (d *Docker) Load(ctx context.Context, name, arch string, config map[string]any) error {
	program, err := busybox()
	if err != nil {
		return err
	}
	layer, err := archive(func(w *tar.Writer) error {
		var errs []error
		for _, dir := range []string{"bin", "tmp", "proc"} {
			errs = append(errs, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o777}))
		}
		for _, link := range applets {
			errs = append(errs, w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + link, Linkname: "busybox", Mode: 0o777}))
		}
		return errors.Join(append(errs, file(w, "bin/busybox", 0o755, program))...)
	})
	if err != nil {
		return err
	}
	config = maps.Clone(config)
	if _, ok := config["Env"]; !ok {
		config["Env"] = []string{"PATH=/bin"}
	}
	conf, err := json.Marshal(map[string]any{"architecture": arch, "os": "linux", "config": config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}}})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	image, err := archive(func(w *tar.Writer) error {
		return errors.Join(file(w, "manifest.json", 0o644, manifest), file(w, "config.json", 0o644, conf), file(w, "layer.tar", 0o644, layer))
	})
	if err != nil {
		return err
	}
	return d.ask(func(cli *client.Client) error {
		res, err := cli.ImageLoad(ctx, bytes.NewReader(image))
		if err != nil {
			return err
		}
		defer res.Close()
		if out, err := io.ReadAll(res); err != nil || !bytes.Contains(out, []byte("Loaded")) {
			return fmt.Errorf("image not loaded: %s, %w", out, err)
		}
		return nil
	})
}

func archive(write func(*tar.Writer) error) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := errors.Join(write(w), w.Close())
	return b.Bytes(), err
}
