"""The web application of `coa serve` and `coa view`: templates, styles and scripts, without a build step."""
