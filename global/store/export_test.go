package store

import (
	"context"
	"io"
	"os"
)

// SnapshotTo writes the contents of the store to a file, as `etcdctl snapshot save` does.
func (e *Etcd) SnapshotTo(ctx context.Context, path string) error {
	r, err := e.client.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(f, r)
	return err
}
