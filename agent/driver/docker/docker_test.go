package docker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mounts"
	"github.com/nusa-scheduler/nusa/agent/lease"
)

// TestConfig: every mistake names its field, without a request to the engine.
func TestConfig(t *testing.T) {
	with := func(key string, value any) map[string]any { return map[string]any{"image": "x", key: value} }
	for field, config := range map[string]map[string]any{
		"config.image: must not be empty":                             {"image": ""},
		"config.image: is missing: the image to run":                  {},
		"config.image: must be text":                                  {"image": 1.0},
		"config.image: must not contain blanks":                       {"image": "nginx latest"},
		"config.imgae: unknown field, did you mean \"image\"?":        with("imgae", "y"),
		"config.args: must be a list of text":                         with("args", "y"),
		"config.entrypoint[1]: must be text":                          with("entrypoint", []any{"a", 2.0}),
		"config.pull: must be one of if_absent":                       with("pull", "sometimes"),
		"config.network: must be one of bridge":                       with("network", "mine"),
		"config.network: none, but the group has ports":               with("network", "none"),
		"config.udp[0]: the group has no port \"dns\"":                with("udp", []any{"dns"}),
		"config.pids_limit: must be a whole number":                   with("pids_limit", 1.5),
		"config.cpu_hard_limit: must be true or false":                with("cpu_hard_limit", "yes"),
		"config.dir: must be an absolute path":                        with("dir", "srv"),
		"config.labels[\"nusa.alloc\"]: labels that begin with nusa.": with("labels", map[string]any{"nusa.alloc": "x"}),
		"config.labels[\"team\"]: must be text":                       with("labels", map[string]any{"team": 1.0}),
		"config.privileged: not allowed on this node":                 with("privileged", true),
	} {
		d, err := New(Config{Dir: t.TempDir(), Host: "unix:///no/such/socket"})
		if err != nil {
			t.Fatal(err)
		}
		err = d.Start(t.Context(), driver.Task{ID: driver.ID{Alloc: "a", Task: "t", Run: 1}, Config: config, Ports: []driver.Port{{Label: "http", Host: 80, To: 80}}})
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%v: %v, want %q", config, err, field)
		}
		d.Close()
	}
}

// TestNoTaskUnderALease: the driver starts no task that has a deadline, because nothing in
// a container ends the task at a deadline.
func TestNoTaskUnderALease(t *testing.T) {
	d, err := New(Config{Dir: t.TempDir(), Host: "unix:///no/such/socket"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	id := driver.ID{Alloc: "a", Task: "t", Run: 1}
	err = d.Start(t.Context(), driver.Task{ID: id, Config: map[string]any{"image": "x"}, Lease: lease.Deadline{At: time.Hour}})
	if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "a lease binds the group") {
		t.Errorf("%v", err)
	}
	if err := d.Renew(t.Context(), id, lease.Deadline{At: time.Hour}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("renewed: %v", err)
	}
}

// TestRootless: an engine in its own mount or user namespace gets no task that needs the
// agent's mounts or users. The fingerprint says why.
func TestRootless(t *testing.T) {
	for options, c := range map[string]struct {
		volumes, secrets bool
		note             string
	}{
		"name=seccomp,profile=builtin name=cgroupns": {volumes: true, secrets: true},
		"name=seccomp,profile=builtin name=rootless": {note: "no volumes, no secrets: the engine is rootless"},
		"name=seccomp,profile=builtin name=userns":   {volumes: true, note: "no secrets: the engine maps users"},
	} {
		if strings.Contains(options, "rootless") && mounts.Usable() != nil {
			c.volumes, c.secrets, c.note = true, true, "volumes are mounted by path"
		}
		e := newFakeEngine(t)
		e.info = map[string]any{"OSType": "linux", "ServerVersion": "28.0", "SecurityOptions": strings.Fields(options)}
		d, err := New(Config{Dir: t.TempDir(), Host: e.host})
		if err != nil {
			t.Fatal(err)
		}
		f := d.Fingerprint(t.Context())
		d.Close()
		for name, want := range map[string]bool{driver.CapMounts: c.volumes, driver.CapVolumes: c.volumes, driver.CapSecrets: c.secrets} {
			if slices.Contains(f.Capabilities, name) != want {
				t.Errorf("%s: %s is among %v: %t", options, name, f.Capabilities, !want)
			}
		}
		if !f.Healthy || !slices.Contains(f.Capabilities, driver.CapExec) || !strings.Contains(f.Message, c.note) || c.note == "" && strings.Contains(f.Message, "no secrets") {
			t.Errorf("%s: %+v", options, f)
		}
	}
}

// TestFaultOf checks the exit code of a command that did not begin.
func TestFaultOf(t *testing.T) {
	for _, c := range []struct {
		code int
		text string
		want int
	}{
		{driver.NotExecutable, `exec: "/no/such": stat /no/such: no such file or directory: unknown`, driver.NoCommand},
		{driver.NotExecutable, `exec: "nosuch": executable file not found in $PATH: unknown`, driver.NoCommand},
		{driver.NotExecutable, `exec: "/etc/passwd": permission denied: unknown`, driver.NotExecutable},
		{driver.NoCommand, "in other words", driver.NoCommand},
	} {
		if got := faultOf(c.code, c.text); got != c.want {
			t.Errorf("%d, %s: %d, want %d", c.code, c.text, got, c.want)
		}
	}
}

// TestOwnerIsCreatedOnce: the driver creates the owner id in its containers' labels only once.
func TestOwnerIsCreatedOnce(t *testing.T) {
	dir := t.TempDir()
	first, err := openRecords(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := openRecords(dir)
	if err != nil || first.owner == "" || again.owner != first.owner {
		t.Errorf("owner %q, was %q: %v", again.owner, first.owner, err)
	}
	if other, err := openRecords(t.TempDir()); err != nil || other.owner == first.owner {
		t.Errorf("two folders have the owner %q: %v", other.owner, err)
	}
}

// TestRecordedEndNeverChanges: a recorded end never changes.
func TestRecordedEndNeverChanges(t *testing.T) {
	r, err := openRecords(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	id := driver.ID{Alloc: "a", Task: "t", Run: 1}
	for _, code := range []int{3, 4} {
		if st, err := r.end(id, driver.Status{State: driver.Ended, ExitCode: code}); err != nil || st.ExitCode != 3 {
			t.Errorf("after %d: %+v, %v", code, st, err)
		}
	}
	if err := r.remove(id); err != nil {
		t.Fatal(err)
	}
	if _, ok := r.get(id); ok {
		t.Error("a record that was removed is there")
	}
}

func TestStatusOf(t *testing.T) {
	const start, end, never = "2026-01-02T03:04:05.5Z", "2026-01-02T03:05:05Z", "0001-01-01T00:00:00Z"
	for name, c := range map[string]struct {
		in     container.State
		rec    record
		state  driver.State
		code   int
		signal int
		cause  driver.Cause
	}{
		"created":       {container.State{Status: "created", StartedAt: never}, record{}, driver.Starting, 0, 0, ""},
		"running":       {container.State{Running: true, StartedAt: start}, record{Stopping: true}, driver.Running, 0, 0, ""},
		"paused":        {container.State{Paused: true, StartedAt: start}, record{}, driver.Running, 0, 0, ""},
		"exited":        {container.State{StartedAt: start, FinishedAt: end, ExitCode: 7}, record{}, driver.Ended, 7, 0, ""},
		"killed":        {container.State{StartedAt: start, FinishedAt: end, ExitCode: 137}, record{}, driver.Ended, 137, 9, ""},
		"stopped":       {container.State{StartedAt: start, FinishedAt: end, ExitCode: 143}, record{Stopping: true}, driver.Ended, 143, 15, driver.CauseStopped},
		"code 255":      {container.State{StartedAt: start, FinishedAt: end, ExitCode: 255}, record{}, driver.Ended, 255, 0, ""},
		"never started": {container.State{StartedAt: never, ExitCode: 127, Error: "no such file"}, record{}, driver.Ended, 127, 0, driver.CauseStartFailed},
		"no end noted":  {container.State{StartedAt: start, FinishedAt: never, ExitCode: 255}, record{}, driver.Ended, 255, 0, ""},
	} {
		got := statusOf(&c.in, c.rec)
		if got.State != c.state || got.ExitCode != c.code || got.Signal != c.signal || got.Cause != c.cause || got.State == driver.Ended && got.Finished.Before(got.Started) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestSplitter: if a stream is read twice, each message is emitted once, in chunks. The
// parts of a long line, which have the same time, are also emitted once.
func TestSplitter(t *testing.T) {
	stamp := func(second int) string {
		return time.Date(2026, 1, 1, 0, 0, second, 0, time.UTC).Format("2006-01-02T15:04:05.000000000Z07:00")
	}
	long := strings.Repeat("x", driver.MaxChunk+10)
	messages := []string{stamp(5) + " a\n", stamp(6) + " part ", stamp(6) + " of it\n", stamp(7) + " " + long}
	for cut := range len(messages) + 1 {
		var got strings.Builder
		chunks := 0
		s := &splitter{skip: [2]int64{0, 1}, emit: func(c driver.LogChunk) error {
			if !c.Stderr || len(c.Data) > driver.MaxChunk {
				t.Errorf("chunk of %d bytes, stderr %v", len(c.Data), c.Stderr)
			}
			chunks++
			got.Write(c.Data)
			return nil
		}}
		for _, upTo := range []int{cut, len(messages)} {
			s.again()
			for _, m := range messages[:upTo] {
				if n, err := s.stream(1).Write([]byte(m)); n != len(m) || err != nil {
					t.Fatal(n, err)
				}
			}
		}
		want := "\npart of it\n" + long
		if got.String() != want || chunks < 4 {
			t.Errorf("broken off after %d: %d bytes in %d chunks", cut, got.Len(), chunks)
		}
	}
}

// TestFaultyField: the driver finds the field that an engine's message is about.
func TestFaultyField(t *testing.T) {
	for message, field := range map[string]string{
		"Minimum memory limit allowed is 6MB": "resources.memory",
		"driver failed programming external connectivity: Bind for 0.0.0.0:80 failed: port is already allocated": "ports",
		"unable to find user nobody: no matching entries in passwd file":                                         "config.user",
		`exec: "x": executable file not found in $PATH`:                                                          "config.command",
		`invalid mount config for type "bind": bind source path does not exist: /x`:                              "volumes",
		"something else": "config",
	} {
		if got := faultyField(fmt.Sprintf("Error response from daemon: %s", message)); got != field {
			t.Errorf("%q: %s, want %s", message, got, field)
		}
	}
}
