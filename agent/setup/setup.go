package setup

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/supervise"
	"github.com/nusa-scheduler/nusa/internal/folder"
)

// DefaultArtifactsMax is the default bound on the size of a task's artifacts, in bytes.
const DefaultArtifactsMax = 1 << 30

// mostArtifacts is larger than every disk. A larger setting counts as mostArtifacts, so
// that sums do not overflow.
const mostArtifacts = 1 << 60

// ErrSecretMissing: the node does not have the secret. Like driver.ErrNotAllowed it makes
// the agent decline the allocation.
var ErrSecretMissing = errors.New("this node has no such secret")

// Error says what could not be prepared for a task. It wraps driver.ErrStart, or
// driver.ErrFinal if a retry is useless.
type Error struct {
	// Field is the field of the task in its job file, for example "artifacts[0].source".
	Field string
	Err   error
	// Final says that a retry is useless.
	Final bool
}

// Error returns a text that begins with the text of the wrapped driver error, like the
// errors of drivers.
func (e *Error) Error() string { return fmt.Sprintf("%v: %s: %v", e.kind(), e.Field, e.Err) }

// Unwrap returns the driver's error and the cause.
func (e *Error) Unwrap() []error { return []error{e.kind(), e.Err} }

func (e *Error) kind() error {
	if e.Final {
		return driver.ErrFinal
	}
	return driver.ErrStart
}

// Config configures a Setup. It says what the operator of the node allows.
type Config struct {
	// Dir is the folder with a folder for each allocation. It is private to the agent and
	// required.
	Dir string
	// Private are the agent's own folders. A volume must not be in one of them, contain
	// one, or be one.
	Private []string
	// VolumesAllow are the folders below which volumes may be. If there are none, no
	// volumes are allowed.
	VolumesAllow []string
	// ArtifactsAllow are further sources from which artifacts may be fetched, besides all
	// public addresses: address prefixes such as 10.0.0.0/8, and folders for file://
	// addresses.
	ArtifactsAllow []string
	// ArtifactsMax bounds the artifacts of one task, in bytes, fetched and unpacked.
	// Default: DefaultArtifactsMax.
	ArtifactsMax int64
	// SecretsDir is the folder with the secrets, in files NAMESPACE/NAME. "" means that
	// this node has no secrets.
	SecretsDir string
	// Dial opens connections. It is required for http and https.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// TLS is the configuration for https. By default the authorities of the system are
	// trusted.
	TLS *tls.Config
	// RetryAfter is the first pause between two attempts to fetch a file. Default: 1 s.
	RetryAfter time.Duration
	Logger     *slog.Logger
}

// Setup prepares tasks. It is safe for concurrent use.
type Setup struct {
	cfg     Config
	nets    []netip.Prefix
	folders []string
	client  *http.Client
	fetches chan struct{}
	idle    time.Duration // idleLimit, except in tests

	mu    sync.Mutex
	sizes map[string]int64 // maps ended allocations to the sizes of their folders

	probe sync.Once
	tmpfs error // why secrets cannot be held in memory, or nil
}

// maxFetches bounds the tasks whose artifacts are fetched at the same time.
const maxFetches = 8

// New returns a Setup. An error names the setting that is not valid.
func New(cfg Config) (*Setup, error) {
	cfg.ArtifactsMax = min(cmp.Or(cfg.ArtifactsMax, DefaultArtifactsMax), mostArtifacts)
	cfg.RetryAfter = cmp.Or(cfg.RetryAfter, time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Setup{cfg: cfg, fetches: make(chan struct{}, maxFetches), idle: idleLimit, sizes: map[string]int64{}}
	for _, dir := range cfg.VolumesAllow {
		if !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("volumes-allow: %q is not an absolute path", dir)
		}
	}
	for _, a := range cfg.ArtifactsAllow {
		if filepath.IsAbs(a) {
			s.folders = append(s.folders, filepath.Clean(a))
			continue
		}
		p, err := netip.ParsePrefix(a)
		if err != nil {
			return nil, fmt.Errorf("artifacts-allow: %q is neither a prefix such as 10.0.0.0/8 nor an absolute path", a)
		}
		s.nets = append(s.nets, p.Masked())
	}
	if cfg.SecretsDir != "" && !filepath.IsAbs(cfg.SecretsDir) {
		return nil, fmt.Errorf("secrets-dir: %q is not an absolute path", cfg.SecretsDir)
	}
	s.client = s.newClient()
	return s, os.MkdirAll(cfg.Dir, 0o700)
}

// Task holds what the preparation of one task needs.
type Task struct {
	Alloc, Name, Namespace string
	// Disk is the disk space that is reserved for the task, in bytes. Its artifacts must
	// not take more. If Disk is 0, only ArtifactsMax applies.
	Disk      int64
	Artifacts []Artifact
	Templates []Template
	Secrets   []string
	Volumes   []driver.Volume
	// User is the user of the task. "" means the agent's user, or root in a container.
	// Contained says that User is a name of the container and not of the host.
	User      string
	Contained bool
}

// Artifact is a file to fetch. To is a path below the task's folder. If To ends with a
// slash, To is a folder for the file or for the contents of the archive.
type Artifact struct {
	Source, Checksum, To string
	Mode                 fs.FileMode
}

// Template is a text that is written to a file. To is a clean path below the task's folder.
type Template struct {
	To, Text string
	Mode     fs.FileMode
}

// Mode parses permissions such as "0644". "" means 0644.
func Mode(octal string) (fs.FileMode, error) {
	if octal == "" {
		return 0o644, nil
	}
	n, err := strconv.ParseUint(octal, 8, 32)
	if err != nil || n > 0o777 {
		return 0, fmt.Errorf("%q is not permissions such as 0644", octal)
	}
	return fs.FileMode(n), nil
}

func (s *Setup) allocDir(alloc string) string { return filepath.Join(s.cfg.Dir, alloc) }

// TaskDir returns the folder of one task.
func (s *Setup) TaskDir(alloc, task string) string {
	return filepath.Join(s.allocDir(alloc), "tasks", task)
}

// SharedDir returns the folder that the tasks of an allocation share.
func (s *Setup) SharedDir(alloc string) string { return filepath.Join(s.allocDir(alloc), "shared") }

// SecretsDir returns the folder of a task's secrets on this node. The folder is in memory.
func (s *Setup) SecretsDir(alloc, task string) string {
	return filepath.Join(s.allocDir(alloc), "secrets", task)
}

// Admit returns an error if a task cannot be prepared on this node. The error wraps
// driver.ErrNotAllowed or ErrSecretMissing. Admit changes nothing and uses no network.
func (s *Setup) Admit(t Task) error {
	if _, err := s.Volumes(t.Volumes); err != nil {
		return err
	}
	for i, name := range t.Secrets {
		if err := s.hasSecret(t.Namespace, name); err != nil {
			return &Error{Field: fmt.Sprintf("secrets[%d]", i), Err: err, Final: true}
		}
	}
	for i, a := range t.Artifacts {
		if err := s.allowSource(a.Source); err != nil {
			return &Error{Field: fmt.Sprintf("artifacts[%d].source", i), Err: err, Final: true}
		}
	}
	return nil
}

// Prepare prepares a task for its next run. It fetches only the artifacts that no earlier
// run has completed. It writes all templates and secrets again.
func (s *Setup) Prepare(ctx context.Context, t Task) error {
	who, err := t.owner()
	if err != nil {
		return &Error{Field: "config.user", Err: err, Final: true}
	}
	if err := s.makeFolders(t); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	if len(t.Artifacts) > 0 {
		if err := s.fetchAll(ctx, t, who); err != nil {
			return err
		}
	}
	if err := s.writeTemplates(t, who); err != nil {
		return err
	}
	if len(t.Secrets) > 0 {
		return s.writeSecrets(t, who)
	}
	return nil
}

// makeFolders makes a task's folders. They are in a private folder of the agent. So only
// the allocation's tasks can use a folder that every user may write to.
func (s *Setup) makeFolders(t Task) error {
	shared := s.SharedDir(t.Alloc)
	for _, dir := range []string{s.TaskDir(t.Alloc, t.Name), shared} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Chmod(shared, 0o777|fs.ModeSticky) // the tasks of an allocation may have different users
}

func (s *Setup) writeTemplates(t Task, who owner) error {
	if len(t.Templates) == 0 {
		return nil
	}
	root, err := os.OpenRoot(s.TaskDir(t.Alloc, t.Name)) // the task may have left links there
	if err != nil {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	defer root.Close()
	for i, tmpl := range t.Templates {
		if err := writeFile(root, tmpl, who); err != nil {
			return &Error{Field: fmt.Sprintf("templates[%d].to", i), Err: err}
		}
	}
	return nil
}

// writeFile replaces a file as a whole. It also replaces a read-only file or a link that an
// earlier run left.
func writeFile(root *os.Root, t Template, who owner) error {
	if err := makeParents(root, t.To, who); err != nil {
		return err
	}
	temp := t.To + ".nusa-new"
	if err := root.RemoveAll(temp); err != nil {
		return err
	}
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(t.Text)
	if err == nil {
		err = who.give(f)
	}
	err = errors.Join(err, f.Chmod(t.Mode), f.Close())
	if err != nil {
		return err
	}
	return root.Rename(temp, t.To)
}

// makeParents makes the parent folders of a file, readable by every user. It gives them to
// the owner.
func makeParents(root *os.Root, name string, who owner) error {
	dir := filepath.Dir(name)
	if dir == "." {
		return nil
	}
	if err := root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for ; dir != "."; dir = filepath.Dir(dir) {
		if err := who.giveName(root, dir); err != nil {
			return err
		}
	}
	return nil
}

// owner is the user that gets a task's files.
type owner struct {
	uid, gid int
	same     bool // the owner is the agent's user, so nothing is changed
	anyone   bool // only the container knows the user's number, so every user may read
}

func (o owner) give(f *os.File) error {
	if o.same || o.anyone {
		return nil
	}
	return f.Chown(o.uid, o.gid)
}

func (o owner) giveName(root *os.Root, name string) error {
	if o.same || o.anyone {
		return nil
	}
	return root.Lchown(name, o.uid, o.gid)
}

func (t Task) owner() (owner, error) {
	name, group, _ := strings.Cut(t.User, ":")
	switch {
	case t.User == "" || t.Contained && name == "root":
		return owner{same: true}, nil
	case t.Contained:
		uid, err := strconv.Atoi(name)
		if err != nil {
			return owner{anyone: true}, nil
		}
		gid, err := strconv.Atoi(group)
		if err != nil {
			gid = uid
		}
		return owner{uid: uid, gid: gid, same: os.Geteuid() != 0}, nil
	}
	cred, err := supervise.Credential(t.User)
	if err != nil || cred == nil {
		return owner{same: true}, err
	}
	return owner{uid: int(cred.Uid), gid: int(cred.Gid)}, nil
}

// Volumes returns the volumes with all links in their sources resolved. It returns an error
// if the operator does not allow one of them.
func (s *Setup) Volumes(in []driver.Volume) ([]driver.Volume, error) {
	out := slices.Clone(in)
	for i, v := range out {
		real, err := s.volume(v.Source)
		if err != nil {
			return nil, &Error{Field: fmt.Sprintf("volumes.%s.source", v.Name), Err: err, Final: true}
		}
		out[i].Source = real
	}
	return out, nil
}

// Bounds of what the agent reports of VolumesAllow.
const (
	maxReported     = 64
	maxReportedPath = 512 // bytes of one path
)

// VolumesAllow returns the folders below which volumes may be, clean, sorted and unique. It
// returns false if the list cannot be reported: there are more than maxReported folders, or
// a path is longer than maxReportedPath or not valid UTF-8.
func (s *Setup) VolumesAllow() ([]string, bool) {
	var out []string
	for _, dir := range s.cfg.VolumesAllow {
		dir = filepath.Clean(dir)
		if len(dir) > maxReportedPath || !utf8.ValidString(dir) {
			return nil, false
		}
		out = append(out, dir)
	}
	slices.Sort(out)
	out = slices.Compact(out)
	if len(out) > maxReported {
		return nil, false
	}
	return out, true
}

func (s *Setup) volume(source string) (string, error) {
	if len(s.cfg.VolumesAllow) == 0 {
		return "", fmt.Errorf("%w: this node allows no folder of the host: set --volumes-allow of its agent", driver.ErrNotAllowed)
	}
	if !folder.Allowed(source, s.cfg.VolumesAllow) {
		return "", fmt.Errorf("%w: %s is not below %s: name it in --volumes-allow of this node's agent", driver.ErrNotAllowed, source, strings.Join(s.cfg.VolumesAllow, ", "))
	}
	real, err := filepath.EvalSymlinks(source)
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w", driver.ErrNotAllowed, source, plain(err))
	}
	if !folder.Below(real, resolved(s.cfg.VolumesAllow)) {
		return "", fmt.Errorf("%w: a link in %s leads outside the folders of --volumes-allow", driver.ErrNotAllowed, source)
	}
	for _, own := range resolved(s.cfg.Private) {
		if folder.Below(real, []string{own}) || folder.Below(own, []string{real}) {
			return "", fmt.Errorf("%w: %s is a folder of the agent, or contains one: name a folder outside its data folder, its secrets folder and /run/nusa", driver.ErrNotAllowed, source)
		}
	}
	return real, nil
}

// resolved resolves the links in the paths of folders. If a folder does not exist, resolved
// resolves the links of its parent. If the parent does not exist either, the folder is
// omitted.
func resolved(dirs []string) []string {
	var out []string
	for _, dir := range dirs {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			out = append(out, real)
		} else if real, err := filepath.EvalSymlinks(filepath.Dir(dir)); err == nil {
			out = append(out, filepath.Join(real, filepath.Base(dir)))
		}
	}
	return out
}

// plain returns a file's error without the path of the file.
func plain(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// entrySize is the size that each file or folder counts besides its blocks, in bytes.
const entrySize = 512

// Size returns the size of the folder of an ended allocation in bytes: the blocks of its
// files, and entrySize for each entry. Without such a folder it returns 0. The result is
// stored, because no program writes to the folder any more.
func (s *Setup) Size(ctx context.Context, alloc string) (int64, error) {
	s.mu.Lock()
	size, known := s.sizes[alloc]
	s.mu.Unlock()
	if known {
		return size, nil
	}
	err := filepath.WalkDir(s.allocDir(alloc), func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		err = errors.Join(err, ctx.Err())
		if err != nil {
			return err
		}
		size += entrySize
		if fi, err := d.Info(); err == nil && fi.Mode().IsRegular() {
			if st, ok := fi.Sys().(*syscall.Stat_t); ok {
				size += st.Blocks * 512
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Remove may have deleted the folder in the meantime. Then nothing is stored, because
	// nothing would ever delete the stored size.
	if _, err := os.Lstat(s.allocDir(alloc)); err == nil {
		s.sizes[alloc] = size
	}
	return size, nil
}
