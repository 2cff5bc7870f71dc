package process

import (
	"fmt"
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
// is the user's own unless it is said; that of root must be.
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
		out = append(out, identity{text, uid, gid})
	}
	return out, nil
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
