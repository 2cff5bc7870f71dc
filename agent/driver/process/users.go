package process

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/supervise"
)

// Users are the users that the operator allows for processes. The first one is the default.
// If there are none, the default is the agent's user, and jobs may name every user, also
// root.
//
// A process has one group, which is stored here with its user, and no supplementary groups.
// The group of an engine's socket, of disks or of sudo gives its members the rights of
// root, and the operator may not know all groups of a user.
type Users []identity

type identity struct {
	text     string
	uid, gid uint32
}

// ParseUsers parses texts USER or USER:GROUP, with names of this host or numbers. Without
// GROUP the group is the primary group of the user. A user whose primary group is root's
// needs a GROUP. An agent that is not root can only name its own user, and only if that
// user has no supplementary groups.
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
			return nil, fmt.Errorf("%s: the group of %s is root's: write %s:GROUP", flag, text, text)
		}
		if err := becomes(uid, gid); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", flag, text, err)
		}
		out = append(out, identity{text, uid, gid})
	}
	return out, nil
}

// becomes returns an error if this agent cannot run a process as a user with only one
// group. An agent that is not root cannot drop a group.
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
		return fmt.Errorf("the agent's user is also in the group %d, and only an agent that runs as root can drop a group: "+
			"start it with the group %d alone, or as root", groups[i], gid)
	}
	return nil
}

// of returns the user for the supervisor of a task that names user. user is "" if the task
// names none. The error wraps driver.ErrNotAllowed, or says that this host does not know
// the user.
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
