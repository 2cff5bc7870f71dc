package process

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/supervise"
)

// Users are whom the operator lets processes run as: the first unless a job
// names another of them. None = the agent's own, and jobs may name any, root
// too.
//
// A process has the one group that its user has here, and no further ones: a
// user of the groups of an engine's socket, of disks or of sudo is root by them,
// and an operator who names a user need not know what else it may.
type Users []identity

type identity struct {
	text     string
	uid, gid uint32
}

// ParseUsers reads USER or USER:GROUP, names of this host or numbers. The group
// is the user's own unless it is said; that of root must be. An
// agent that is not root can only name itself, and only if it has no further
// groups.
func ParseUsers(first string, others []string) (Users, error) {
	var out Users
	for i, text := range append([]string{first}, others...) {
		if text == "" && len(others) == 0 {
			return nil, nil
		}
		flag := "--process-users"
		if i == 0 {
			flag = "--process-user"
		}
		if text == "" {
			return nil, fmt.Errorf("%s: a user is missing", flag)
		}
		uid, gid, err := supervise.Lookup(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		if gid == 0 && uid != 0 && !strings.Contains(text, ":") {
			return nil, fmt.Errorf("%s: the group of %s is root's: say %s:GROUP", flag, text, text)
		}
		if err := becomes(uid, gid); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", flag, text, err)
		}
		out = append(out, identity{text, uid, gid})
	}
	return out, nil
}

// becomes says why a process cannot be of a user and of that one group alone.
// An agent that is not root can give up none of its groups.
func becomes(uid, gid uint32) error {
	if os.Geteuid() == 0 {
		return nil
	}
	if int(uid) != os.Geteuid() {
		return fmt.Errorf("only an agent that runs as root can run processes as another user, this one runs as %d", os.Geteuid())
	}
	groups, err := os.Getgroups()
	if err != nil {
		return err
	}
	groups = append(groups, os.Getgid(), os.Getegid())
	if i := slices.IndexFunc(groups, func(g int) bool { return g != int(gid) }); i >= 0 {
		return fmt.Errorf("this agent is also of the group %d, which only one that runs as root can take from its processes: "+
			"start it with the group %d alone, or as root", groups[i], gid)
	}
	return nil
}

// of is the user for a supervisor of a task that says user, "" = none. Errors:
// driver.ErrNotAllowed, and one that this host does not know.
func (u Users) of(user string) (string, error) {
	if len(u) == 0 {
		return user, nil
	}
	i := 0
	if user != "" {
		uid, gid, err := supervise.Lookup(user)
		if err != nil {
			return "", err
		}
		exact := strings.Contains(user, ":")
		i = slices.IndexFunc(u, func(id identity) bool { return id.uid == uid && (!exact || id.gid == gid) })
	}
	if i < 0 {
		return "", fmt.Errorf("%w: jobs may not run as %s (--process-user, --process-users)", driver.ErrNotAllowed, user)
	}
	return fmt.Sprintf("%d:%d", u[i].uid, u[i].gid), nil
}
