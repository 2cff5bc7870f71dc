package setup

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/internal/wait"
)

const (
	// attempts is the number of attempts to fetch a file. The pause between two attempts
	// doubles.
	attempts = 4
	// maxWords bounds the part of a server's error message that is shown, in bytes.
	maxWords = 200
	// idleLimit bounds how long a server may send nothing, because other artifacts wait for
	// their turn.
	idleLimit = 30 * time.Second
)

// budget is the number of bytes that a task's artifacts may still take.
type budget struct {
	left, all int64
	setting   string // the setting that gives the bound
}

var errBudget = errors.New("artifacts too large")

// charge subtracts n bytes from the budget.
func (b *budget) charge(n int64) error {
	if n > b.left {
		return fmt.Errorf("%w: the artifacts of the task take more than %d bytes, fetched and unpacked (%s)", errBudget, b.all, b.setting)
	}
	b.left -= n
	return nil
}

// copy copies data and charges the budget for it.
func (b *budget) copy(w io.Writer, r io.Reader) error {
	n, err := io.Copy(w, io.LimitReader(r, b.left+1))
	return errors.Join(err, b.charge(n))
}

// fetchAll fetches the artifacts that are not complete yet.
func (s *Setup) fetchAll(ctx context.Context, t Task, who owner) error {
	select {
	case s.fetches <- struct{}{}:
		defer func() { <-s.fetches }()
	case <-ctx.Done():
		return &Error{Field: "artifacts", Err: fmt.Errorf("the artifacts of %d other tasks were fetched first: %w", maxFetches, ctx.Err())}
	}
	b := &budget{left: s.cfg.ArtifactsMax, setting: "--artifacts-max"}
	if t.Disk > 0 && t.Disk < b.left {
		b.left, b.setting = t.Disk, "resources.disk"
	}
	b.all = b.left
	alloc, err := os.OpenRoot(s.allocDir(t.Alloc))
	if err != nil {
		return fmt.Errorf("%w: %w", driver.ErrStart, err)
	}
	defer alloc.Close()
	for i, a := range t.Artifacts {
		if err := s.complete(ctx, alloc, t, i, a, b, who); err != nil {
			return failed(fmt.Sprintf("artifacts[%d]", i), err)
		}
	}
	return nil
}

// fieldError is an error of one field of an artifact.
type fieldError struct {
	field string
	error
}

func (e fieldError) Unwrap() error { return e.error }

// failed names the field at fault and says whether a retry is useless.
func failed(at string, err error) *Error {
	out := &Error{Field: at + ".source", Err: err}
	if fe := (fieldError{}); errors.As(err, &fe) {
		out.Field, out.Err = at+"."+fe.field, fe.error
	}
	for _, final := range []error{driver.ErrNotAllowed, errBudget, errRedirect, errArchive, errChecksum} {
		out.Final = out.Final || errors.Is(err, final)
	}
	return out
}

// complete makes sure that an artifact is in place. It works in its own folder, which the
// task cannot reach, and never uses the result of an interrupted attempt. Last it writes a
// mark file, which says that the artifact is in place.
func (s *Setup) complete(ctx context.Context, alloc *os.Root, t Task, i int, a Artifact, b *budget, who owner) (err error) {
	work := filepath.Join("fetch", fmt.Sprintf("%s.%d", t.Name, i))
	mark := work + ".done"
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%o", a.Source, a.Checksum, a.To, a.Mode))
	want := hex.EncodeToString(sum[:])
	if got, err := alloc.ReadFile(mark); err == nil && string(got) == want {
		return nil
	}
	if err := errors.Join(alloc.RemoveAll(work), alloc.MkdirAll(work, 0o700)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, alloc.RemoveAll(work)) }()
	file := filepath.Join(work, "file")
	if err := s.fetch(ctx, alloc, file, a, b); err != nil {
		return err
	}
	if err := place(ctx, alloc, work, filepath.Join("tasks", t.Name), a, b, who); err != nil {
		return err
	}
	// The mark must also be true after a power loss, so the artifact is synced first.
	dir, err := alloc.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return err
	}
	return alloc.WriteFile(mark, []byte(want), 0o600)
}

// place moves a fetched artifact into the task's folder.
func place(ctx context.Context, alloc *os.Root, work, taskDir string, a Artifact, b *budget, who owner) error {
	file, folder := filepath.Join(work, "file"), strings.HasSuffix(a.To, "/")
	if !filepath.IsLocal(a.To) {
		return fieldError{"to", fmt.Errorf("%w: %q leaves the task's folder", driver.ErrNotAllowed, a.To)}
	}
	name := baseName(a.Source)
	kind := archiveKind(name)
	if folder && kind != "" {
		tree := filepath.Join(work, "tree")
		if err := alloc.Mkdir(tree, 0o700); err != nil {
			return err
		}
		if err := unpackInto(ctx, alloc, file, tree, kind, b); err != nil {
			return err
		}
		return moveTree(alloc, tree, filepath.Join(taskDir, a.To), taskDir, who)
	}
	to := a.To
	if folder {
		if !filepath.IsLocal(name) || name == "." {
			return fieldError{"to", fmt.Errorf("%q names a folder, and the source has no name for the file", a.To)}
		}
		to = filepath.Join(to, name)
	}
	if err := alloc.Chmod(file, a.Mode); err != nil {
		return err
	}
	if err := moveFile(alloc, file, filepath.Join(taskDir, to), taskDir, who); err != nil {
		return fieldError{"to", err}
	}
	return nil
}

// moveFile moves a file into the task's folder.
func moveFile(alloc *os.Root, from, to, taskDir string, who owner) error {
	if err := makeBelow(alloc, taskDir, filepath.Dir(to), who); err != nil {
		return err
	}
	if err := who.giveName(alloc, from); err != nil {
		return err
	}
	return alloc.Rename(from, to)
}

// makeBelow makes folders in the task's folder.
func makeBelow(alloc *os.Root, taskDir, dir string, who owner) error {
	if err := alloc.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for ; dir != taskDir && dir != "."; dir = filepath.Dir(dir) {
		if err := who.giveName(alloc, dir); err != nil {
			return err
		}
	}
	return nil
}

// moveTree moves the files of an unpacked archive into a folder that may already have
// files.
func moveTree(alloc *os.Root, tree, to, taskDir string, who owner) error {
	return fs.WalkDir(alloc.FS(), filepath.ToSlash(tree), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(tree, p)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return makeBelow(alloc, taskDir, filepath.Join(to, rel), who)
		}
		return moveFile(alloc, p, filepath.Join(to, rel), taskDir, who)
	})
}

// baseName returns the last part of the path in a source.
func baseName(source string) string {
	u, err := url.Parse(source)
	if err != nil {
		return ""
	}
	return path.Base(u.Path)
}

var errChecksum = errors.New("the file has another checksum")

// hasher returns the hash and the sum of a checksum such as "sha256:…". The hash is nil if
// there is no checksum.
func hasher(checksum string) (hash.Hash, string, error) {
	kind, sum, _ := strings.Cut(checksum, ":")
	switch kind {
	case "":
		return nil, "", nil
	case "sha256":
		return sha256.New(), sum, nil
	case "sha512":
		return sha512.New(), sum, nil
	}
	return nil, "", fieldError{"checksum", fmt.Errorf("%w: %q is neither sha256 nor sha512", errChecksum, kind)}
}

// fetch fetches a source into a file, in several attempts.
func (s *Setup) fetch(ctx context.Context, alloc *os.Root, file string, a Artifact, b *budget) error {
	h, want, err := hasher(a.Checksum)
	if err != nil {
		return err
	}
	u, err := url.Parse(a.Source)
	if err != nil {
		return errors.New("not an address")
	}
	if u.Scheme == "http" && h == nil {
		return fieldError{"checksum", fmt.Errorf("%w: http needs a checksum", driver.ErrNotAllowed)}
	}
	pause := s.cfg.RetryAfter
	for n := 1; ; n++ {
		try := *b
		err := s.attempt(ctx, alloc, file, u, h, &try)
		if err == nil {
			*b = try
			break
		}
		final := failed("", err).Final
		if r := (*refusal)(nil); final || errors.As(err, &r) && !r.again || errors.Is(err, fs.ErrNotExist) || n == attempts || ctx.Err() != nil {
			return fmt.Errorf("%s: %w", where(u), err)
		}
		s.cfg.Logger.Warn("artifact not fetched, trying again", "source", where(u), "attempt", n, "error", err)
		if !wait.For(ctx, pause+rand.N(pause)) {
			return fmt.Errorf("%s: %w", where(u), errors.Join(err, ctx.Err()))
		}
		pause *= 2
	}
	if h == nil {
		return nil
	}
	if got := hex.EncodeToString(h.Sum(nil)); !strings.EqualFold(got, want) {
		return fieldError{"checksum", fmt.Errorf("%w: %s has %s", errChecksum, where(u), got)}
	}
	return nil
}

// where returns the text of a source for messages, without the parts that may be secret.
func where(u *url.URL) string {
	if u.Scheme == "file" {
		return "file://" + u.Path
	}
	return u.Scheme + "://" + u.Host + u.EscapedPath()
}

func (s *Setup) attempt(ctx context.Context, alloc *os.Root, file string, u *url.URL, h hash.Hash, b *budget) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body, err := s.open(ctx, u, h != nil, b)
	if err != nil {
		return err
	}
	defer body.Close()
	paused := time.AfterFunc(s.idle, func() { cancel(fmt.Errorf("the server sent nothing for %s", s.idle)) })
	defer paused.Stop()
	f, err := alloc.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	var w io.Writer = f
	if h != nil {
		h.Reset()
		w = io.MultiWriter(f, h)
	}
	err = b.copy(w, progress{body, func() { paused.Reset(s.idle) }})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return errors.Join(err, f.Close())
}

// progress calls a function after each read.
type progress struct {
	io.Reader
	onRead func()
}

func (p progress) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	if n > 0 {
		p.onRead()
	}
	return n, err
}

// open checks a source and opens it for reading.
func (s *Setup) open(ctx context.Context, u *url.URL, checksum bool, b *budget) (io.ReadCloser, error) {
	if err := s.allowSource(u.String()); err != nil {
		return nil, err
	}
	if u.Scheme == "file" {
		return s.openFile(u.Path)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, errors.New("not an address")
	}
	req.Header.Set("User-Agent", "nusa-agent")
	client := *s.client
	client.CheckRedirect = checkRedirect(checksum)
	res, err := client.Do(req)
	if ue := (*url.Error)(nil); errors.As(err, &ue) {
		return nil, ue.Err // the text of ue contains the whole address
	}
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		return nil, refused(res)
	}
	if n := res.ContentLength; n > b.left {
		res.Body.Close()
		return nil, b.charge(n)
	}
	return res.Body, nil
}

func (s *Setup) openFile(path string) (io.ReadCloser, error) {
	folder, rel, err := s.folderOf(path)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(folder) // a link cannot lead outside
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(rel, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(err, fmt.Errorf("%w: it is not a plain file", driver.ErrNotAllowed))
	}
	return f, nil
}

// refusal is the response of a server that does not send the file.
type refusal struct {
	status, words string
	again         bool // a later attempt may succeed
}

func (r *refusal) Error() string {
	if r.words == "" {
		return "the server answers " + r.status
	}
	return fmt.Sprintf("the server answers %s: %s", r.status, r.words)
}

func refused(res *http.Response) error {
	r := &refusal{status: res.Status}
	switch c := res.StatusCode; c {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		r.again = true
	default:
		r.again = c >= 500
	}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/plain") {
		words, _ := io.ReadAll(io.LimitReader(res.Body, maxWords))
		r.words = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(string(words), ""), func(c rune) bool {
			return unicode.IsSpace(c) || !unicode.IsPrint(c)
		}), " ")
	}
	return r
}
