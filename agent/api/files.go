package api

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxFiles bounds the calls of ReadFile that run at the same time.
	maxFiles = 16
	// maxPath bounds the length of a path, in bytes.
	maxPath = 4096
	// sharedDir and tasksDir are the folders of an allocation that callers see. They do not see
	// its third folder, which has the secrets.
	sharedDir, tasksDir = "shared", "tasks"
)

// ListFiles lists a folder of an allocation.
func (s *Allocations) ListFiles(ctx context.Context, req *nusav1.ListFilesRequest) (*nusav1.ListFilesResponse, error) {
	limit := int(req.GetLimit())
	if limit < 0 || limit > maxList {
		return nil, status.Errorf(codes.InvalidArgument, "limit: %d is not within 1..%d", limit, maxList)
	}
	limit = cmp.Or(limit, defaultList)
	id, dir, tasks, err := s.engine.Folder(ctx, req.GetAllocation())
	if err != nil {
		return nil, lookupError(err)
	}
	at, err := splitPath(req.GetPath(), tasks)
	if err != nil {
		return nil, err
	}
	out := &nusav1.ListFilesResponse{Allocation: id}
	if at.inner == "" { // the allocation's folder or `tasks`: its entries are fixed
		return at.listFixed(dir, tasks, out)
	}
	root, err := at.open(dir)
	if err != nil {
		return nil, fileError(at.path, err)
	}
	defer root.Close()
	f, err := root.OpenFile(at.inner, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fileError(at.path, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, fileError(at.path, err)
	}
	out.File = infoToProto(at.path, fi)
	if !fi.IsDir() {
		return out, nil
	}
	entries, err := f.ReadDir(limit + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fileError(at.path, err)
	}
	out.Truncated = len(entries) > limit
	for _, e := range entries[:min(limit, len(entries))] {
		if fi, err := e.Info(); err == nil { // an error: the file was removed after ReadDir
			out.Entries = append(out.Entries, infoToProto(e.Name(), fi))
		}
	}
	slices.SortFunc(out.Entries, func(a, b *nusav1.FileInfo) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out, nil
}

// ReadFile sends a plain file.
func (s *Allocations) ReadFile(req *nusav1.ReadFileRequest, out nusav1.Allocations_ReadFileServer) error {
	if req.GetOffset() < 0 || req.GetLimit() < 0 {
		return status.Errorf(codes.InvalidArgument, "offset and limit: %d and %d must not be negative", req.GetOffset(), req.GetLimit())
	}
	select {
	case s.files <- struct{}{}:
		defer func() { <-s.files }()
	default:
		return status.Errorf(codes.ResourceExhausted, "files: this node sends at most %d files at a time; try again when one has ended", maxFiles)
	}
	_, dir, tasks, err := s.engine.Folder(out.Context(), req.GetAllocation())
	if err != nil {
		return lookupError(err)
	}
	at, err := splitPath(req.GetPath(), tasks)
	if err != nil {
		return err
	}
	if at.inner == "" {
		return status.Errorf(codes.FailedPrecondition, "file %s: is a folder: nusa alloc fs ls lists it, and nusa alloc fs cp copies it", at.path)
	}
	root, err := at.open(dir)
	if err != nil {
		return fileError(at.path, err)
	}
	defer root.Close()
	// A pipe without a writer must not block the agent.
	f, err := root.OpenFile(at.inner, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fileError(at.path, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil:
		return fileError(at.path, err)
	case fi.IsDir():
		return status.Errorf(codes.FailedPrecondition, "file %s: is a folder: nusa alloc fs ls lists it, and nusa alloc fs cp copies it", at.path)
	case !fi.Mode().IsRegular():
		return status.Errorf(codes.FailedPrecondition, "file %s: is not a plain file: its mode is %s", at.path, modeText(fi.Mode()))
	}
	if err := out.Send(&nusav1.FileChunk{File: infoToProto(at.path, fi)}); err != nil {
		return err
	}
	end := fi.Size() // what a task appends during the call is not sent, so that each call ends
	if n := req.GetLimit(); n > 0 && n < end-req.GetOffset() {
		end = req.GetOffset() + n
	}
	return sendFile(io.NewSectionReader(f, req.GetOffset(), max(0, end-req.GetOffset())), at.path, out)
}

func sendFile(from io.Reader, name string, out nusav1.Allocations_ReadFileServer) error {
	buf := make([]byte, driver.MaxChunk)
	for {
		n, err := io.ReadFull(from, buf)
		if n > 0 {
			if err := out.Send(&nusav1.FileChunk{Data: slices.Clone(buf[:n])}); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return fileError(name, err)
		}
	}
}

// place is a path within an allocation's folder.
type place struct {
	path string // cleaned, for messages
	// part is "shared" or "tasks/NAME". inner is the path within part; "." is part itself. Both
	// are "" for the allocation's folder and for the folder `tasks`.
	part, inner string
}

// splitPath checks the path of a request and splits it into part and inner.
func splitPath(text string, tasks []string) (place, error) {
	clean := path.Clean("/" + text)[1:]
	p := place{path: cmp.Or(clean, ".")}
	switch {
	case len(text) > maxPath:
		return p, status.Errorf(codes.InvalidArgument, "path: is longer than %d bytes", maxPath)
	case strings.ContainsRune(text, 0):
		return p, status.Error(codes.InvalidArgument, "path: contains a zero byte")
	case slices.Contains(strings.Split(text, "/"), ".."):
		return p, status.Errorf(codes.InvalidArgument, "path: %q has a part `..`: give the path from the allocation's folder", text)
	}
	first, rest, _ := strings.Cut(clean, "/")
	name, below, _ := strings.Cut(rest, "/")
	switch {
	case clean == "", clean == tasksDir:
		return p, nil
	case first == sharedDir:
		p.part, p.inner = sharedDir, cmp.Or(rest, ".")
		return p, nil
	case first == tasksDir && slices.Contains(tasks, name):
		p.part, p.inner = tasksDir+"/"+name, cmp.Or(below, ".")
		return p, nil
	}
	return p, status.Errorf(codes.NotFound, "file %s: does not exist; the folder of an allocation has shared and tasks/%s", p.path, strings.Join(tasks, ", tasks/"))
}

// open opens the folder part. A link in it cannot lead out of it. If a task has replaced part
// itself by a link, open returns an error.
func (p place) open(dir string) (*os.Root, error) {
	top, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	part := filepath.FromSlash(p.part)
	fi, err := top.Lstat(part)
	if err != nil {
		return nil, err
	}
	if !fi.IsDir() {
		return nil, fs.ErrInvalid
	}
	return top.OpenRoot(part)
}

// listFixed lists the folder of the allocation, or the folder `tasks`.
func (p place) listFixed(dir string, tasks []string, out *nusav1.ListFilesResponse) (*nusav1.ListFilesResponse, error) {
	names := []string{sharedDir, tasksDir}
	if p.path == tasksDir {
		names, dir = tasks, filepath.Join(dir, tasksDir)
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return nil, fileError(p.path, err)
	}
	out.File = infoToProto(p.path, fi)
	for _, name := range names {
		if fi, err := os.Lstat(filepath.Join(dir, name)); err == nil { // an error: the task is not prepared yet
			out.Entries = append(out.Entries, infoToProto(name, fi))
		}
	}
	return out, nil
}

func infoToProto(name string, fi fs.FileInfo) *nusav1.FileInfo {
	out := &nusav1.FileInfo{Name: strings.ToValidUTF8(name, "\ufffd"), Mode: modeText(fi.Mode()), Folder: fi.IsDir(), Modified: timestamppb.New(fi.ModTime())}
	if !fi.IsDir() {
		out.Size = fi.Size()
	}
	return out
}

// modeText returns a mode as `ls -l` shows it. Go's own form has other letters for types, and
// begins with further letters for setuid, setgid and sticky.
func modeText(m fs.FileMode) string {
	text := []byte("-rwxrwxrwx")
	for _, t := range []struct {
		mode   fs.FileMode
		letter byte
	}{{fs.ModeDir, 'd'}, {fs.ModeSymlink, 'l'}, {fs.ModeNamedPipe, 'p'}, {fs.ModeSocket, 's'}, {fs.ModeDevice, 'b'}, {fs.ModeCharDevice, 'c'}} {
		if m&t.mode != 0 {
			text[0] = t.letter
		}
	}
	for i := range 9 {
		if m&(1<<(8-i)) == 0 {
			text[1+i] = '-'
		}
	}
	for _, s := range []struct {
		mode        fs.FileMode
		at          int
		with, alone byte // with the right to execute, and without
	}{{fs.ModeSetuid, 3, 's', 'S'}, {fs.ModeSetgid, 6, 's', 'S'}, {fs.ModeSticky, 9, 't', 'T'}} {
		switch {
		case m&s.mode == 0:
		case text[s.at] == 'x':
			text[s.at] = s.with
		default:
			text[s.at] = s.alone
		}
	}
	return string(text)
}

// fileError converts an error of the file system. The result names the caller's path, and no path
// of the node.
func fileError(name string, err error) error {
	cause := err
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		cause = e.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return status.Errorf(codes.NotFound, "file %s: does not exist", name)
	case strings.Contains(cause.Error(), "escapes"):
		return status.Errorf(codes.FailedPrecondition, "file %s: a symbolic link leads out of the folder, and is not followed", name)
	case errors.Is(err, unix.ENXIO): // a socket, or a pipe without a writer
		return status.Errorf(codes.FailedPrecondition, "file %s: is not a plain file", name)
	}
	return status.Errorf(codes.FailedPrecondition, "file %s: %v", name, cause)
}
