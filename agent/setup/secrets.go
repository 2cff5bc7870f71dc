package setup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// Bounds in bytes: of one secret, and of the memory for all secrets of a task.
const (
	maxSecret   = 256 << 10
	secretsSize = 16 << 20 // room for job.MaxSecrets secrets of the greatest size, twice, because old and new ones exist at the same time
)

// hasSecret checks that a secret exists and may be used. It does not read the secret.
func (s *Setup) hasSecret(namespace, name string) error {
	f, err := s.openSecret(namespace, name)
	if err != nil {
		return err
	}
	return f.Close()
}

// openSecret opens a secret of this node. Only the owner may be able to read the secret and
// the folders that contain it. Errors name the secret but no path, because a path may
// reveal the secrets of other users. The log has the path, for the operator.
func (s *Setup) openSecret(namespace, name string) (*os.File, error) {
	missing := fmt.Errorf("%w: %q of namespace %s", ErrSecretMissing, name, namespace)
	if s.cfg.SecretsDir == "" {
		return nil, fmt.Errorf("%w (this node has none: set --secrets-dir of its agent)", missing)
	}
	if !filepath.IsLocal(namespace) || !filepath.IsLocal(name) || strings.ContainsRune(namespace+name, '/') || namespace == "." || name == "." {
		return nil, missing
	}
	root, err := os.OpenRoot(s.cfg.SecretsDir)
	if err != nil {
		s.cfg.Logger.Error("secrets-dir", "error", err)
		return nil, missing
	}
	defer root.Close()
	for _, at := range []string{".", namespace, filepath.Join(namespace, name)} {
		fi, err := root.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, missing
		}
		if err == nil {
			err = private(fi, at == filepath.Join(namespace, name))
		}
		if err != nil {
			s.cfg.Logger.Error("secret refused", "path", filepath.Join(s.cfg.SecretsDir, at), "error", err)
			return nil, fmt.Errorf("%w: the agent refuses to read %q of namespace %s: %w", ErrSecretMissing, name, namespace, plain(err))
		}
	}
	f, err := root.OpenFile(filepath.Join(namespace, name), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		s.cfg.Logger.Error("secret not read", "error", err)
		return nil, fmt.Errorf("%w (%w)", missing, plain(err))
	}
	fi, err := f.Stat()
	if err == nil {
		err = private(fi, true)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%w (%w)", missing, plain(err))
	}
	return f, nil
}

// private returns an error if a file or folder is not private. Only the owner may be able
// to read it, and the owner must be root or the agent's user.
func private(fi fs.FileInfo, file bool) error {
	st, _ := fi.Sys().(*syscall.Stat_t)
	switch {
	case file && !fi.Mode().IsRegular():
		return errors.New("it is not a plain file")
	case !file && !fi.IsDir():
		return errors.New("it is not in a plain folder")
	case fi.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("other users may read it: its mode, or that of a folder above, is %#o and must be private to the owner (chmod go=)", fi.Mode().Perm())
	case st == nil || int(st.Uid) != os.Geteuid() && st.Uid != 0:
		return errors.New("its owner is neither root nor the user of the agent")
	case file && fi.Size() > maxSecret:
		return fmt.Errorf("it has %d bytes, at most %d", fi.Size(), maxSecret)
	}
	return nil
}

// CanSecrets returns an error if no job can have secrets on this node. It does not check
// any secret.
func (s *Setup) CanSecrets() error {
	if s.cfg.SecretsDir == "" {
		return errors.New("this node has none: set --secrets-dir of its agent")
	}
	fi, err := os.Stat(s.cfg.SecretsDir)
	if err == nil {
		err = private(fi, false)
	}
	if err != nil {
		return fmt.Errorf("the folder of --secrets-dir: %w", plain(err))
	}
	return s.secretsProblem()
}

// secretsProblem returns an error if this node cannot hold secrets in memory.
func (s *Setup) secretsProblem() error {
	s.probe.Do(func() {
		dir := filepath.Join(s.cfg.Dir, ".probe")
		s.tmpfs = os.MkdirAll(dir, 0o700)
		if s.tmpfs != nil {
			return
		}
		if mounted(dir) { // an agent that was killed left the mount
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
		s.tmpfs = s.mountTmpfs(dir)
		if s.tmpfs == nil {
			s.tmpfs = unix.Unmount(dir, unix.MNT_DETACH)
		}
		_ = os.Remove(dir)
	})
	return s.tmpfs
}

// mountTmpfs mounts a file system in memory that only the agent's user may enter. The
// memory is never swapped if the kernel supports that (Linux 6.4).
func (s *Setup) mountTmpfs(dir string) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	options := fmt.Sprintf("size=%d,nr_inodes=256,mode=0700", secretsSize)
	err := unix.Mount("nusa-secrets", dir, "tmpfs", flags, options+",noswap")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("nusa-secrets", dir, "tmpfs", flags, options)
	}
	if err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	return nil
}

// mounted reports whether something is mounted at dir. It compares devices and not types,
// because the parent folder may also be a tmpfs.
func mounted(dir string) bool {
	var at, above unix.Stat_t
	return unix.Lstat(dir, &at) == nil && unix.Lstat(filepath.Dir(dir), &above) == nil && at.Dev != above.Dev
}

// writeSecrets writes a task's secrets into a file system in memory, so that they are never
// on a disk.
func (s *Setup) writeSecrets(t Task, who owner) error {
	if err := s.secretsProblem(); err != nil {
		return &Error{Field: "secrets", Err: fmt.Errorf("%w: %w", driver.ErrNotAllowed, err), Final: true}
	}
	dir := s.SecretsDir(t.Alloc, t.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	if !mounted(dir) {
		if err := s.mountTmpfs(dir); err != nil {
			return &Error{Field: "secrets", Err: err}
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	defer root.Close()
	for i, name := range t.Secrets {
		if err := s.writeSecret(root, t.Namespace, name, who); err != nil {
			return &Error{Field: fmt.Sprintf("secrets[%d]", i), Err: err}
		}
	}
	mode := fs.FileMode(0o700)
	if who.anyone {
		mode = 0o555
	}
	if err := errors.Join(root.Chmod(".", mode), who.giveName(root, ".")); err != nil {
		return &Error{Field: "secrets", Err: err}
	}
	return nil
}

func (s *Setup) writeSecret(root *os.Root, namespace, name string, who owner) error {
	var fsys unix.Statfs_t
	at, err := root.Open(".")
	if err != nil {
		return err
	}
	err = unix.Fstatfs(int(at.Fd()), &fsys)
	at.Close()
	if err != nil || fsys.Type != unix.TMPFS_MAGIC {
		return errors.New("no memory is mounted for the secrets")
	}
	from, err := s.openSecret(namespace, name)
	if err != nil {
		return err
	}
	defer from.Close()
	value, err := io.ReadAll(io.LimitReader(from, maxSecret))
	if err != nil {
		return plain(err)
	}
	defer clear(value)
	temp := ".new-" + name
	_ = root.Remove(temp)
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return plain(err)
	}
	mode := fs.FileMode(0o400)
	if who.anyone {
		mode = 0o444
	}
	_, err = f.Write(value)
	err = errors.Join(err, who.give(f), f.Chmod(mode), f.Close())
	if err != nil {
		return plain(err)
	}
	return root.Rename(temp, name)
}

// Clean removes an allocation's secrets from memory. None of its tasks may be running.
func (s *Setup) Clean(alloc string) error {
	above := filepath.Join(s.allocDir(alloc), "secrets")
	tasks, err := os.ReadDir(above)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, t := range tasks {
		dir := filepath.Join(above, t.Name())
		if mounted(dir) {
			// Remove the files before the mount, because another namespace may hold a copy of
			// the mount.
			files, e := os.ReadDir(dir)
			for _, f := range files {
				e = errors.Join(e, os.Remove(filepath.Join(dir, f.Name())))
			}
			err = errors.Join(err, e, unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
		}
		err = errors.Join(err, os.Remove(dir))
	}
	return errors.Join(err, os.Remove(above))
}

// Remove deletes the folder of an allocation that has ended.
func (s *Setup) Remove(alloc string) error {
	if err := s.Clean(alloc); err != nil {
		return err
	}
	if err := os.RemoveAll(s.allocDir(alloc)); err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.sizes, alloc)
	s.mu.Unlock()
	return nil
}

// Sweep removes the secrets of all allocations that are not live. A killed agent may have
// left such secrets in memory.
func (s *Setup) Sweep(live func(alloc string) bool) {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		s.cfg.Logger.Error("left-over secrets cannot be listed", "error", err)
	}
	for _, e := range entries {
		if live(e.Name()) {
			continue
		}
		if err := s.Clean(e.Name()); err != nil {
			s.cfg.Logger.Error("left-over secrets not removed", "alloc", e.Name(), "error", err)
		}
	}
}
