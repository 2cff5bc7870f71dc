//go:build integration

package local_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/engines"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// secret is a secret of the jobs. The test checks that it is inside their tasks and nowhere else.
const secret = "never-printed-7f3a9c51"

// give makes the secrets, artifacts and volumes that jobs use, and returns the agents' flags.
func (f *fleet) give() []string {
	f.t.Helper()
	at := func(parts ...string) string { return filepath.Join(append([]string{f.dir, "given"}, parts...)...) }
	for path, text := range map[string]string{at("secrets", "default", "db"): secret, at("artifacts", "page"): "from the artifact\n", at("volumes", "data", "in"): "from the volume\n"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			f.t.Fatal(err)
		}
	}
	return []string{"--secrets-dir", at("secrets"), "--artifacts-allow", at("artifacts"), "--volumes-allow", at("volumes")}
}

// reach forwards an address of the host's loopback interface into an engine's network, under the same
// address.
func (f *fleet) reach(n *engines.Network, addr string) {
	f.t.Helper()
	var lis net.Listener
	if err := n.Do(func() (err error) { lis, err = net.Listen("tcp", addr); return }); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { lis.Close() })
	go func() {
		for {
			in, err := lis.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := net.Dial("tcp", addr)
				if err != nil {
					return
				}
				defer out.Close()
				go func() { _, _ = io.Copy(out, in); out.Close() }()
				_, _ = io.Copy(in, out)
			}()
		}
	}()
}

// checkKinds are the kinds of checks, as in a job file.
var checkKinds = map[string]string{
	"http":    `http: {port: web, path: /healthz}`,
	"tcp":     `tcp: {port: web}`,
	"command": `command: [/bin/sh, -c, 'cat "$NUSA_TASK_DIR/healthz"']`,
}

// featuresJob has a group for each kind of check on each engine. Each task has a secret, an artifact, a
// template and a volume, and is healthy once its folder has a file "go".
func (f *fleet) featuresJob() (path string, keys []string) {
	text := "name: features\ngroups:\n"
	for _, driver := range []string{"process", "incus", "docker"} {
		image, port, target := map[string]string{"incus": "image: bb, ", "docker": "image: 'box:1', "}[driver], "8080", ", target: /srv/data"
		switch {
		case driver == "process": // shares the host's files and ports
			port, target = "$NUSA_PORT_web", ""
		case driver == "incus" && len(f.incus) == 0 || driver == "docker" && f.docker == nil:
			continue
		}
		for kind, check := range checkKinds {
			keys = append(keys, driver+"-"+kind+"[0]")
			text += fmt.Sprintf(`  %[1]s-%[2]s:
    regions: {allow: [{name: jakarta}]}
    ports: {web: {to: 8080}}
    volumes: {data: {source: %[3]s, read_only: true%[8]s}}
    tasks:
      main:
        driver: %[1]s
        config: {%[4]scommand: /bin/sh, args: [-c, 'rm -f healthz; until [ -e go ]; do sleep 0.05; done; echo fine >healthz; exec busybox httpd -f -p %[5]s']}
        resources: {cpu: 50m, memory: 32MiB}
        kill_timeout: 1s
        secrets: [db]
        artifacts: [{source: "file://%[6]s", to: local/page}]
        templates: [{text: "port ${NUSA_PORT_web} of ${NUSA_GROUP}", to: local/app.conf}]
        check: {%[7]s, interval: 1s, timeout: 20s, failures: 2, healthy_deadline: 3m}
        restart: {attempts: 3}
`, driver, kind, filepath.Join(f.dir, "given/volumes/data"), image, port, filepath.Join(f.dir, "given/artifacts/page"), check, target)
		}
	}
	path = filepath.Join(f.dir, "features.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return path, keys
}

// features: on every engine a task is prepared before it starts. It counts as running after its first
// passed check, is restarted when the check fails, and keeps its secret private.
func (f *fleet) features() {
	path, keys := f.featuresJob()
	f.must("job", "run", "--detach", path)
	var all map[string]*nusav1.Allocation
	f.eventually("all have begun", func(context.Context) error {
		all = f.allocs("features")
		for _, key := range keys {
			if n := all[key].GetTasks()["main"]; n.GetStarted() == nil {
				return fmt.Errorf("%s is %s: %s", key, all[key].GetState(), all[key].GetMessage())
			}
		}
		return nil
	})
	// The checks fail, because "go" does not exist. Wait until each check has failed once.
	f.eventually("the checks have seen nothing", func(context.Context) error {
		all = f.allocs("features")
		for _, key := range keys {
			if n := all[key].GetTasks()["main"]; n.GetCheck().GetMessage() == "" {
				return fmt.Errorf("%s: %v", key, n)
			}
		}
		return nil
	})
	for _, key := range keys {
		if s := all[key].GetState(); s != nusav1.AllocState_ALLOC_STATE_STARTING {
			f.t.Errorf("%s is %s before it is healthy: %v", key, s, all[key].GetTasks()["main"])
		}
		f.inTask(key, all[key])
		if err := os.WriteFile(f.taskFile(all[key], "go"), nil, 0o600); err != nil {
			f.t.Fatal(err)
		}
	}
	f.running("features", keys, 0)
	f.kept(all)
	// The other checks read the page, so without it their tasks are unhealthy. A tcp check passes
	// without the page.
	keys = slices.DeleteFunc(keys, func(key string) bool { return strings.Contains(key, "-tcp") })
	for _, key := range keys {
		if err := os.Remove(f.taskFile(all[key], "healthz")); err != nil {
			f.t.Fatal(err)
		}
	}
	f.running("features", keys, 1)
	for _, key := range keys {
		f.inTask(key, all[key]) // after the restart
	}
	f.must("job", "stop", "features")
	f.eventually("no secret is left", func(context.Context) error {
		for key, a := range all {
			if dir := filepath.Join(f.dir, "data", a.GetNodeName(), "allocs", a.GetId(), "secrets"); exists(dir) {
				return fmt.Errorf("%s: %s is there", key, dir)
			}
		}
		return nil
	})
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (f *fleet) taskFile(a *nusav1.Allocation, name string) string {
	return filepath.Join(f.dir, "data", a.GetNodeName(), "allocs", a.GetId(), "tasks", "main", name)
}

// running waits until all allocations run and have had this number of restarts.
func (f *fleet) running(job string, keys []string, restarts int32) {
	f.t.Helper()
	f.eventually(fmt.Sprintf("all run after %d restarts", restarts), func(context.Context) error {
		all := f.allocs(job)
		for _, key := range keys {
			a, running := all[key], nusav1.AllocState_ALLOC_STATE_RUNNING
			// During a restart the allocation still counts as running; its task does not.
			n := a.GetTasks()["main"]
			if a.GetState() != running || n.GetState() != running || n.GetRestarts() != restarts {
				return fmt.Errorf("%s is %s: %s, %v", key, a.GetState(), a.GetMessage(), n)
			}
		}
		return nil
	})
}

// inTask checks what was prepared, from inside the task.
func (f *fleet) inTask(key string, a *nusav1.Allocation) {
	f.t.Helper()
	look := func(script string) string {
		out, errs, code := f.nusa("alloc", "exec", a.GetId(), "--", "/bin/sh", "-c", script)
		return fmt.Sprintf("%s%sexit %d", out, errs, code)
	}
	group, _, _ := strings.Cut(key, "[")
	for script, want := range map[string]string{
		`cat "$NUSA_SECRETS_DIR/db"; stat -c " %a" "$NUSA_SECRETS_DIR/db" "$NUSA_SECRETS_DIR"`:                       secret + " 400\n 700\nexit 0",
		`(echo x >"$NUSA_SECRETS_DIR/new") 2>/dev/null; ls "$NUSA_SECRETS_DIR"`:                                      "db\nexit 0",
		`cat "$NUSA_TASK_DIR/local/page" "$NUSA_TASK_DIR/local/app.conf"`:                                            fmt.Sprintf("from the artifact\nport %d of %s", a.GetPorts()["web"], group) + "exit 0",
		`cd /srv/data 2>/dev/null || cd "$NUSA_ALLOC_DIR/data"; cat in; (echo x >new) 2>/dev/null || echo read-only`: "from the volume\nread-only\nexit 0",
		`cat /proc/1/environ /proc/self/environ 2>/dev/null | grep -c never-printed`:                                 "0\nexit 1",
	} {
		if strings.HasPrefix(key, "process") && strings.Contains(script, "/new") && strings.Contains(script, "SECRETS") {
			continue // a process has a folder there, not a read-only mount
		}
		if got := look(script); got != want {
			f.t.Errorf("%s: %s printed %q, want %q", key, script, got, want)
		}
	}
}

// kept checks that the secret is private: it is in no response of an engine, no command line, no log, and
// no file of an engine or an agent.
func (f *fleet) kept(all map[string]*nusav1.Allocation) {
	hidden := func(where string, data []byte) {
		if bytes.Contains(data, []byte(secret)) {
			f.t.Errorf("the secret is in %s", where)
		}
	}
	for _, i := range f.incus {
		var instances json.RawMessage
		if err := i.Ask(f.t.Context(), http.MethodGet, "/1.0/instances?recursion=2", nil, &instances); err != nil {
			f.t.Fatal(err)
		}
		hidden("the daemon's instances", instances)
	}
	if f.docker != nil {
		cli, err := client.New(client.WithHost(f.docker.Host()))
		if err != nil {
			f.t.Fatal(err)
		}
		defer cli.Close()
		list, err := cli.ContainerList(f.t.Context(), client.ContainerListOptions{})
		if err != nil || len(list.Items) == 0 {
			f.t.Fatal(list, err)
		}
		for _, c := range list.Items {
			got, err := cli.ContainerInspect(f.t.Context(), c.ID, client.ContainerInspectOptions{})
			if err != nil {
				f.t.Fatal(err)
			}
			data, err := json.Marshal(got)
			if err != nil {
				f.t.Fatal(err)
			}
			hidden("the engine's "+c.Names[0], data)
		}
	}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		data, _ := os.ReadFile(path)
		hidden(path, data)
	}
	for key, a := range all {
		hidden("the output of "+key, []byte(f.must("alloc", "logs", a.GetId())))
	}
	dirs := []string{filepath.Join(f.dir, "data"), filepath.Join(f.dir, "log")}
	for _, i := range f.incus {
		dirs = append(dirs, i.Dir)
	}
	if f.docker != nil {
		dirs = append(dirs, f.docker.Dir)
	}
	for _, dir := range dirs {
		if n := onDisk(dir, hidden); n == 0 {
			f.t.Errorf("nothing was looked at in %s", dir)
		}
	}
}

// onDisk reads the files of a folder, except those in memory, and returns their number.
func onDisk(dir string, look func(string, []byte)) (n int) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // the file was deleted in the meantime
		}
		var at unix.Statfs_t
		if d.IsDir() && unix.Statfs(path, &at) == nil && at.Type == unix.TMPFS_MAGIC {
			return fs.SkipDir
		}
		if fi, err := d.Info(); err == nil && fi.Mode().IsRegular() && fi.Size() < 32<<20 {
			data, _ := os.ReadFile(path)
			look(path, data)
			n++
		}
		return nil
	})
	return n
}
