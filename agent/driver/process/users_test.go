package process

import (
	"errors"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// TestUsers: jobs run as the users that the operator names, with the intended
// group.
func TestUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("other users: only as root")
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Skip("no user nobody: ", err)
	}
	own := nobody.Uid + ":" + nobody.Gid
	for _, c := range []struct {
		first  string
		others []string
		say    string
		want   string // "-" = not allowed, "?" = unknown
	}{
		{"", nil, "", ""},
		{"", nil, "root", "root"},
		{"", nil, "nobody", "nobody"},
		{"nobody", nil, "", own},
		{"nobody", nil, "nobody", own},
		{"nobody", nil, nobody.Uid, own},
		{"nobody", nil, own, own},
		{"nobody", nil, "nobody:0", "-"},
		{"nobody", nil, "nobody:root", "-"},
		{"nobody", nil, nobody.Uid + ":4711", "-"},
		{"nobody", nil, "root", "-"},
		{"nobody", nil, "0", "-"},
		{"nobody", nil, "00", "-"},
		{"nobody", nil, "0:" + nobody.Gid, "-"},
		{"nobody", nil, "4711", "-"},
		{"nobody", nil, "4711:4711", "-"},
		{"nobody", nil, "no-such-user", "?"},
		{"nobody", nil, "nobody:no-such-group", "?"},
		{"nobody", nil, "4294967296", "?"},
		{"nobody", []string{"4711"}, "", own},
		{"nobody", []string{"4711"}, "4711", "4711:4711"},
		{"nobody", []string{"4711:4712"}, "4711", "4711:4712"},
		{"nobody", []string{"4711:4712"}, "4711:4712", "4711:4712"},
		{"nobody", []string{"4711:4712"}, "4711:4711", "-"},
		{"nobody:root", nil, "nobody", nobody.Uid + ":0"},
		{"root", nil, "", "0:0"},
	} {
		u, err := ParseUsers(c.first, c.others)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		d := New(Config{Dir: t.TempDir(), SupervisorArgv: []string{"true"}, Users: u, NoLimits: true})
		task := driver.Task{Config: map[string]any{"command": "true", "user": c.say}}
		got, err := u.of(c.say)
		switch admit := d.Admit(task); {
		case c.want == "-":
			if !errors.Is(err, driver.ErrNotAllowed) || !errors.Is(admit, driver.ErrNotAllowed) || !strings.Contains(admit.Error(), "config.user: ") || !strings.Contains(admit.Error(), "--process-users") {
				t.Errorf("%+v: %q, %v, %v", c, got, err, admit)
			}
		case c.want == "?":
			if err == nil || errors.Is(err, driver.ErrNotAllowed) || admit != nil {
				t.Errorf("%+v: %q, %v, %v", c, got, err, admit)
			}
		case got != c.want || err != nil || admit != nil:
			t.Errorf("%+v: %q, %v, %v", c, got, err, admit)
		}
	}
	for _, c := range []struct {
		first  string
		others []string
		words  string
	}{
		{"", []string{"nobody"}, "--process-user: a user is missing"},
		{"nobody", []string{""}, "--process-users: a user is missing"},
		{"no-such-user", nil, "--process-user: user: unknown user no-such-user"},
		{"nobody:no-such-group", nil, "--process-user: group: unknown group no-such-group"},
	} {
		if _, err := ParseUsers(c.first, c.others); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestNoFurtherGroups: if the operator limits the users, a process has only the group of
// its user, and none of the agent's groups. Without a limit a process has all groups of its
// user.
func TestNoFurtherGroups(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("other users: only as root")
	}
	name, groups := memberOfMore(t)
	u, err := ParseUsers(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	free, bound := newDriver(t, t.TempDir()), newDriver(t, t.TempDir())
	bound.cfg.Users = u
	for i, c := range []struct {
		d    *Driver
		want []string
	}{{free, groups}, {bound, groups[:1]}} {
		task := sleeping(t, c.d, func(x *driver.Task) {
			x.ID.Run = i + 1
			x.Config = map[string]any{"command": "sleep", "args": []any{"3600"}, "user": name}
		})
		if got := strings.Fields(output(t, c.d, task.ID, "id -G")); !slices.Equal(got, c.want) {
			t.Errorf("%s has the groups %v, want %v", name, got, c.want)
		}
	}
}

// memberOfMore returns a user of this host with further groups, and the list of all its groups,
// which begins with its own group.
func memberOfMore(t *testing.T) (name string, groups []string) {
	t.Helper()
	text, err := os.ReadFile("/etc/group")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		name, _, _ := strings.Cut(fields[len(fields)-1], ",")
		u, err := user.Lookup(name)
		if err != nil || u.Uid == "0" {
			continue
		}
		if ids, err := u.GroupIds(); err == nil && len(ids) > 1 {
			ids = slices.DeleteFunc(ids, func(id string) bool { return id == u.Gid })
			return name, append([]string{u.Gid}, ids...)
		}
	}
	t.Skip("no user of this host has further groups")
	return "", nil
}

// TestUnknownUser: if users are limited, a user that this host does not know causes an
// ErrFinal, not an ErrInvalid.
func TestUnknownUser(t *testing.T) {
	d := newDriver(t, t.TempDir())
	d.cfg.Users = Users{{text: "1000", uid: 1000, gid: 1000}}
	err := d.Start(t.Context(), driver.Task{ID: driver.ID{Alloc: "a", Task: "t", Run: 1}, Config: map[string]any{"command": "true", "user": "no-such-user"}})
	if !errors.Is(err, driver.ErrFinal) || errors.Is(err, driver.ErrInvalid) || !strings.HasPrefix(err.Error(), "task did not start: task t: config.user: ") {
		t.Errorf("%v", err)
	}
}

// asUser marks the process of a user in TestUsersWithoutRoot.
const asUser = "NUSA_TEST_AS_USER"

// TestUsersWithoutRoot: an agent that is not root cannot drop its groups, so it refuses a
// setting that requires this. With an accepted setting, tasks start with one group.
func TestUsersWithoutRoot(t *testing.T) {
	if want, ok := os.LookupEnv(asUser); ok {
		u, err := ParseUsers(want, nil)
		if err != nil {
			t.Fatal(err)
		}
		d := newDriver(t, t.TempDir())
		d.cfg.Users = u
		task := sleeping(t, d)
		if got := strings.TrimSpace(output(t, d, task.ID, "id -u; id -G")); got != "4711\n4711" {
			t.Errorf("it runs with the groups %q", got)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("other users: only as root")
	}
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		gid    uint32
		groups []uint32
		user   string
		want   string // "" means that the task starts
	}{
		{4711, nil, "4711:4711", ""},
		{4711, []uint32{4711}, "4711", ""},
		{4711, []uint32{4712}, "4711:4711", "also in the group 4712"},
		{4712, nil, "4711:4711", "also in the group 4712"},
		{4711, nil, "4711:4712", "also in the group 4711"},
		{4711, nil, "4712:4711", "only an agent that runs as root"},
		{4711, nil, "0:4711", "only an agent that runs as root"},
	} {
		dir, err := os.MkdirTemp("", "user-")
		err = errors.Join(err, os.WriteFile(dir+"/test", program, 0o755), os.Chmod(dir+"/test", 0o755), os.Chown(dir, 4711, 4711))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), dir+"/test", "-test.run=^TestUsersWithoutRoot$", "-test.v")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "TMPDIR="+dir, "HOME="+dir, asUser+"="+c.user)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4711, Gid: c.gid, Groups: c.groups}}
		out, err := cmd.CombinedOutput()
		if (err == nil) != (c.want == "") || !strings.Contains(string(out), c.want) {
			t.Errorf("%+v: %v\n%s", c, err, out)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
}
