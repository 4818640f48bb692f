package pg

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// endWithParent has the kernel send a signal to the process when the thread that started it ends.
func endWithParent(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// freeMemory frees the System V shared memory of a killed server, which nothing else would. Line 7 of the file
// postmaster.pid names it, by key and ID. A server that ended by itself has removed the file.
func freeMemory(postmasterPID string) error {
	id, found := memoryID(postmasterPID)
	if !found {
		return nil
	}
	_, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EIDRM) {
		return nil // freed already
	}
	return err
}

// memoryID returns the ID of the shared memory that the file names, and whether it names one.
func memoryID(postmasterPID string) (id int, found bool) {
	text, err := os.ReadFile(postmasterPID)
	if err != nil {
		return 0, false
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 7 {
		return 0, false
	}
	fields := strings.Fields(lines[6])
	if len(fields) != 2 {
		return 0, false
	}
	id, err = strconv.Atoi(fields[1])
	return id, err == nil
}
