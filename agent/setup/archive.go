package setup

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Bounds of an archive: the number of its entries (folders included), the depth and the
// length of a name, and the length of a link's target.
const (
	maxEntries = 100_000
	maxDepth   = 64
	maxName    = 1024
	maxLink    = 1024
	// maxBetween bounds all headers of a tar together, in bytes. maxList bounds the list of
	// the files in a zip, in bytes, because the list is held in memory.
	maxBetween = 256 << 20
	maxList    = 16 << 20
)

// errArchive: the archive is broken or harmful, so a retry is useless.
var errArchive = errors.New("archive refused")

// archiveKind returns the kind of an archive by its file name, or "" for another file.
func archiveKind(name string) string {
	lower := strings.ToLower(name)
	for _, suffix := range []string{".tar.gz", ".tgz", ".tar", ".zip"} {
		if strings.HasSuffix(lower, suffix) {
			return strings.TrimPrefix(strings.Replace(suffix, ".tgz", ".tar.gz", 1), ".")
		}
	}
	return ""
}

// unpacker writes the entries of an archive into a folder that no other program knows. It
// makes the links last, and only in real folders, so that it never writes through a link.
type unpacker struct {
	ctx   context.Context
	root  *os.Root
	b     *budget
	count int
	dirs  map[string]bool
	links []link
}

type link struct{ name, to string }

// stream reads an archive until ctx ends, and at most left bytes. Without these bounds a
// small archive with many compressed headers could take hours.
type stream struct {
	ctx  context.Context
	r    io.Reader
	left int64
}

func (s *stream) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	if s.left <= 0 {
		return 0, errors.New("its headers are far larger than its files")
	}
	n, err := s.r.Read(p[:min(int64(len(p)), s.left)])
	s.left -= int64(n)
	return n, err
}

// lister reads at most left bytes while package zip reads the list of the files in a zip.
// The list may contain more entries than it announces.
type lister struct {
	r    io.ReaderAt
	left int64
}

func (l *lister) ReadAt(p []byte, at int64) (int, error) {
	if l.left -= int64(len(p)); l.left < 0 {
		return 0, fmt.Errorf("its list of files has more than %d bytes", maxList)
	}
	return l.r.ReadAt(p, at)
}

// unpackInto unpacks an archive file into the folder tree. Both are in alloc.
func unpackInto(ctx context.Context, alloc *os.Root, file, tree, kind string, b *budget) error {
	root, err := alloc.OpenRoot(tree)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := alloc.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	u := &unpacker{ctx: ctx, root: root, b: b, dirs: map[string]bool{".": true}}
	switch kind {
	case "zip":
		err = u.zip(f)
	case "tar.gz":
		var gz *gzip.Reader
		gz, err = gzip.NewReader(f)
		if err != nil {
			return fmt.Errorf("%w: %w", errArchive, err)
		}
		err = u.tar(gz)
	default:
		err = u.tar(f)
	}
	if ctx.Err() != nil {
		return ctx.Err() // a context that ended is not the archive's fault
	}
	if err != nil {
		return err
	}
	return u.link()
}

func (u *unpacker) tar(r io.Reader) error {
	for t := tar.NewReader(&stream{ctx: u.ctx, r: r, left: u.b.left + maxBetween}); ; {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errArchive, err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		name, err := u.entry(h.Name)
		if err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeReg:
			err = u.file(name, fs.FileMode(h.Mode), t)
		case tar.TypeDir:
			err = u.dir(name)
		case tar.TypeSymlink:
			err = u.symlink(name, h.Linkname)
		case tar.TypeLink:
			err = u.hardlink(name, h.Linkname)
		default:
			err = refuse(h.Name, "is neither a file, a folder nor a link")
		}
		if err != nil {
			return err
		}
	}
}

func (u *unpacker) zip(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	list := &lister{r: f, left: maxList}
	z, err := zip.NewReader(list, fi.Size())
	if err != nil {
		return fmt.Errorf("%w: %w", errArchive, err)
	}
	list.left = math.MaxInt64
	for _, e := range z.File {
		name, err := u.entry(e.Name)
		if err != nil {
			return err
		}
		if err := u.zipEntry(name, e); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) zipEntry(name string, e *zip.File) error {
	if e.Mode().IsDir() {
		return u.dir(name)
	}
	if t := e.Mode().Type(); t != 0 && t != fs.ModeSymlink {
		return refuse(e.Name, "is neither a file, a folder nor a link")
	}
	r, err := e.Open()
	if err != nil {
		return fmt.Errorf("%w: %w", errArchive, err)
	}
	defer r.Close()
	if e.Mode().Type() == fs.ModeSymlink {
		to, err := io.ReadAll(io.LimitReader(r, maxLink+1))
		if err != nil {
			return fmt.Errorf("%w: %w", errArchive, err)
		}
		return u.symlink(name, string(to))
	}
	return u.file(name, e.Mode(), r)
}

func refuse(name, why string) error { return fmt.Errorf("%w: %.128q %s", errArchive, name, why) }

// entry checks the name of an entry and counts the entry.
func (u *unpacker) entry(name string) (string, error) {
	if err := u.ctx.Err(); err != nil {
		return "", err
	}
	clean := path.Clean(name)
	switch {
	case len(name) > maxName || strings.Count(clean, "/") >= maxDepth:
		return "", refuse(name, "is too long a name")
	case name == "" || path.IsAbs(name) || !filepath.IsLocal(clean) || strings.ContainsAny(name, "\x00\\"):
		return "", refuse(name, "is not a path inside the archive")
	}
	return clean, u.add()
}

func (u *unpacker) add() error {
	if u.count++; u.count > maxEntries {
		return fmt.Errorf("%w: more than %d files and folders", errArchive, maxEntries)
	}
	return nil
}

// dir makes a folder and its parents.
func (u *unpacker) dir(name string) error {
	if u.dirs[name] {
		return nil
	}
	if err := errors.Join(u.dir(path.Dir(name)), u.add()); err != nil {
		return err
	}
	if err := u.root.Mkdir(name, 0o755); err != nil {
		return refuse(name, "is a folder and a file")
	}
	u.dirs[name] = true
	return nil
}

// clear prepares the place of an entry. If two entries have the same name, the later one
// replaces the earlier one.
func (u *unpacker) clear(name string) error {
	if u.dirs[name] {
		return refuse(name, "is a folder and a file")
	}
	if err := u.dir(path.Dir(name)); err != nil {
		return err
	}
	if err := u.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// file writes a file. Its owner may always write to the file, and other users never may.
func (u *unpacker) file(name string, mode fs.FileMode, r io.Reader) error {
	if err := u.clear(name); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = u.b.copy(f, &stream{ctx: u.ctx, r: r, left: math.MaxInt64})
	if err != nil && !errors.Is(err, errBudget) {
		err = fmt.Errorf("%w: %w", errArchive, err)
	}
	return errors.Join(err, f.Chmod(mode&0o755|0o600), f.Close())
}

// hardlink makes a hard link to an earlier file of the archive.
func (u *unpacker) hardlink(name, to string) error {
	clean := path.Clean(to)
	fi, err := u.root.Lstat(clean)
	if path.IsAbs(to) || !filepath.IsLocal(clean) || err != nil || !fi.Mode().IsRegular() {
		return refuse(name, "is a link to a file that is not earlier in the archive")
	}
	if clean == name {
		return nil
	}
	if err := u.clear(name); err != nil {
		return err
	}
	return u.root.Link(clean, name)
}

// symlink records a link that stays inside the archive. The text of the target shows that
// only if every ".." is at the beginning, because a later ".." may follow a link.
func (u *unpacker) symlink(name, to string) error {
	switch {
	case to == "" || len(to) > maxLink || strings.ContainsRune(to, 0):
		return refuse(name, "is a link to nowhere")
	case path.IsAbs(to) || path.Clean(to) != strings.TrimSuffix(to, "/") || !filepath.IsLocal(path.Join(path.Dir(name), to)):
		return refuse(name, "is a link that leads out of the archive")
	}
	u.links = append(u.links, link{name, to})
	return nil
}

// link makes the recorded links. It refuses a link whose parent folder is itself a link.
func (u *unpacker) link() error {
	linked := map[string]bool{}
	for _, l := range u.links {
		for above := path.Dir(l.name); above != "."; above = path.Dir(above) {
			if linked[above] {
				return refuse(l.name, "is below a link")
			}
		}
		if err := u.clear(l.name); err != nil {
			return err
		}
		if err := u.root.Symlink(l.to, l.name); err != nil {
			return err
		}
		linked[l.name] = true
	}
	return nil
}
