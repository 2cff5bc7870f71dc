package alloc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxCopied bounds the files and folders that one command copies.
	maxCopied = 10_000
	// maxDepth bounds the folders within folders that one command copies.
	maxDepth = 64
)

func copyCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "cp ID|JOB PATH [TO]", Short: "Copy a file or folder of one allocation to this machine", Args: cli.Positional("ID|JOB", "PATH", "[TO]"),
		Long: `Copies a file or folder of one allocation to this machine, with the same name, or to
TO. It replaces files of the same name. It copies plain files and folders, at most 10,000, and names
what it leaves out.

` + filesHelp,
		Example: "  nusa alloc fs cp 1f3a shared/out.log\n  nusa alloc fs cp hello/greeter/0 tasks/greet ./greet",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			if c.Output != "table" {
				return errors.New("--output: alloc fs cp writes files, and one line for people")
			}
			if instance, file, colon := strings.Cut(args[0], ":"); colon {
				return fmt.Errorf("%q: give the instance and the path as two arguments: %s alloc fs cp %s %s", args[0], c.Program, cmp.Or(instance, "ID"), cmp.Or(file, "PATH"))
			}
			ctx, cancel := c.WithTimeout()
			a, err := findAlloc(ctx, c, args[0])
			cancel()
			if err != nil {
				return err
			}
			to := ""
			if len(args) > 2 {
				to = args[2]
			}
			k := &copier{c: c, alloc: a.GetId()}
			if err := k.copyTo(c.Ctx, args[1], to); err != nil {
				return err
			}
			c.Printf("copied %s, %s, to %s\n", term.Plural(k.files, "file"), strings.TrimSpace(term.Size(k.bytes)), k.at)
			return nil
		}),
	}
}

// copier copies files of one allocation into a folder of this machine.
type copier struct {
	c     *cli.Session
	alloc string
	at    string // the path of the copy
	files int
	seen  int
	bytes int64
}

// copyTo copies a file or a folder. If to is an existing folder, the copy is in it.
func (k *copier) copyTo(ctx context.Context, from, to string) error {
	r, err := k.list(ctx, from)
	if err != nil {
		return err
	}
	name := path.Base(path.Clean("/" + from))
	if name == "/" {
		name = k.alloc
	}
	k.at = cmp.Or(to, name)
	if fi, err := os.Stat(k.at); err == nil && fi.IsDir() && (to != "" || !r.GetFile().GetFolder()) {
		k.at = filepath.Join(k.at, name)
	}
	parent, err := os.OpenRoot(filepath.Dir(k.at))
	if err != nil {
		return err
	}
	defer parent.Close()
	return k.copy(ctx, parent, filepath.Base(k.at), from, r, 0)
}

func (k *copier) list(ctx context.Context, name string) (*nusav1.ListFilesResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, k.c.Timeout)
	defer cancel()
	return k.c.Allocs().ListFiles(ctx, &nusav1.ListFilesRequest{Allocation: k.alloc, Path: name, Limit: maxListed})
}

// copy copies the file or folder from, which r describes, to the name of a folder. The names come
// from another machine, so nothing is written outside of that folder.
func (k *copier) copy(ctx context.Context, into *os.Root, name, from string, r *nusav1.ListFilesResponse, depth int) error {
	if !r.GetFile().GetFolder() {
		return k.copyFile(ctx, into, name, from)
	}
	if depth > maxDepth {
		return fmt.Errorf("%s: more than %d folders within each other: copy a folder below it", from, maxDepth)
	}
	if r.GetTruncated() {
		return fmt.Errorf("%s: has more than %d entries: copy them one by one", from, maxListed)
	}
	if err := into.Mkdir(name, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	below, err := into.OpenRoot(name)
	if err != nil {
		return err
	}
	defer below.Close()
	for _, e := range r.GetEntries() {
		k.seen++
		source := path.Join(from, e.GetName())
		switch {
		case k.seen > maxCopied:
			return fmt.Errorf("%s: more than %d files and folders: copy a folder below it", from, maxCopied)
		case e.GetName() == "" || filepath.Base(e.GetName()) != e.GetName() || !filepath.IsLocal(e.GetName()):
			return fmt.Errorf("%s: the node sent a name that is not one: %q", from, e.GetName())
		case e.GetFolder():
			r, err := k.list(ctx, source)
			if err == nil {
				err = k.copy(ctx, below, e.GetName(), source, r, depth+1)
			}
			if err != nil {
				return err
			}
		case e.GetMode() == "" || e.GetMode()[0] != '-':
			k.c.Warn("%s is not a plain file: left out", source)
		default:
			if err := k.copyFile(ctx, below, e.GetName(), source); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k *copier) copyFile(ctx context.Context, into *os.Root, name, from string) error {
	f, err := into.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	n, err := readFile(ctx, k.c, &nusav1.ReadFileRequest{Allocation: k.alloc, Path: from}, f)
	k.bytes, k.files = k.bytes+n, k.files+1
	return errors.Join(err, f.Close())
}
