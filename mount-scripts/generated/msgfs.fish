complete --keep-order --exclusive --command msgfs --arguments "(MSGFS_COMPLETE=fish msgfs -- (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token))"
